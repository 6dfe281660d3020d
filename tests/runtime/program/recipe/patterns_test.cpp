// Patterns of parameter names: their matches, and the errors for patterns that do not fit the model.
#include "runtime/program/recipe/patterns.h"

#include <gtest/gtest.h>

#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "tests/runtime/program/recipe/recipe_folder.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

Recipe with(const RecipeFolder& folder, const std::string& lines) {
  std::string text = kSmallRecipe;
  text.replace(text.find("optimizer:"), std::string::npos, lines);
  return load_recipe(folder.write("r.yaml", text), {}, "");
}

TEST(Patterns, OfFrozenParametersAndGroupsAreRead) {
  const RecipeFolder folder;
  const Recipe recipe = with(folder, R"(  freeze: [model.embed_tokens.weight, "*.[0-9].mlp.*"]
  parameter_metrics: {every: 5}
optimizer:
  name: muon
  learning_rate: 1e-3
  muon: {scale: original, nesterov: false, newton_schulz_steps: 6, adamw_learning_rate: 2e-4}
  groups:
    - {pattern: "*norm.weight", weight_decay: 0}
    - pattern: "*.k_proj.*"
      learning_rate_factor: 0.5
parallel: {fsdp: {unit_layers: 2}}
)");
  for (const Recipe& each : {recipe, parse_recipe(to_yaml(recipe))}) {
    EXPECT_EQ(each.train.freeze, (std::vector<std::string>{"model.embed_tokens.weight", "*.[0-9].mlp.*"}));
    EXPECT_EQ(each.train.parameter_metrics.every, 5);
    EXPECT_EQ(each.parallel.fsdp.unit_layers, 2);
    EXPECT_EQ(each.optimizer.groups,
              (std::vector<GroupOptions>{{"*norm.weight", 1, 0}, {"*.k_proj.*", 0.5, std::nullopt}}));
    EXPECT_EQ(each.optimizer.muon.scale, MuonScale::Original);
    EXPECT_FALSE(each.optimizer.muon.nesterov);
    EXPECT_EQ(each.optimizer.muon.newton_schulz_steps, 6);
    EXPECT_EQ(each.optimizer.muon.adamw_learning_rate, 2e-4);
    EXPECT_EQ(each.optimizer.momentum, 0.95) << "of muon, when none is given";
  }
  const fs::path file = folder.write("small.yaml", kSmallRecipe);
  const Recipe plain = load_recipe(file, {}, "");
  EXPECT_TRUE(plain.train.freeze.empty());
  EXPECT_TRUE(plain.optimizer.groups.empty());
  EXPECT_EQ(plain.optimizer.momentum, 0);
  const Recipe set = load_recipe(
      file,
      {"train.freeze=[\"*.bias\", lm_head.weight]", "model.family=qwen2",
       "optimizer.groups=[{pattern: lm_head.weight, weight_decay: 0.5}, {pattern: \"*\", learning_rate_factor: 2}]"},
      "");
  EXPECT_EQ(set.train.freeze.size(), 2u);
  EXPECT_EQ(set.optimizer.groups[1].learning_rate_factor, 2);
}

struct Bad {
  std::string lines;     // from line 14 on, within train: and optimizer:
  std::string expected;  // text after the name of the file
};

class Pattern : public ::testing::TestWithParam<Bad> {};

TEST_P(Pattern, IsRefusedWithItsLocation) {
  const RecipeFolder folder;
  EXPECT_EQ(input_error([&] { with(folder, GetParam().lines); }),
            (folder.path() / "r.yaml").string() + GetParam().expected);
}

const std::string kOptimizer = "optimizer:\n  learning_rate: 1e-3\n";

INSTANTIATE_TEST_SUITE_P(
    All, Pattern,
    ::testing::Values(
        Bad{"  freeze: model.*\n" + kOptimizer, ":14:11: train.freeze: \"model.*\" is not a list"},
        Bad{"  freeze: [lm_head.weight, model.layer.0.*]\n" + kOptimizer,
            ":14:28: train.freeze: \"model.layer.0.*\" matches no parameter of the model; did you mean "
            "\"model.layers.0.*\"?"},
        Bad{"  freeze:\n    - model.layers.0.mlp.up_proj.weigth\n" + kOptimizer,
            ":15:7: train.freeze: \"model.layers.0.mlp.up_proj.weigth\" matches no parameter of the model; did you "
            "mean "
            "\"model.layers.0.mlp.up_proj.weight\"?"},
        Bad{"  freeze: [\"*.BIAS\"]\n" + kOptimizer,
            ":14:12: train.freeze: \"*.BIAS\" matches no parameter of the model: its parameters have names such as "
            "model.embed_tokens.weight, and case matters"},
        Bad{"  freeze: [\"model.*\", \"lm_*\"]\n" + kOptimizer,
            ":14:23: train.freeze: with this pattern every parameter is frozen: remove one of the patterns"},
        Bad{kOptimizer + "  groups: {pattern: x}\n", ":16:11: optimizer.groups: a map is not a list"},
        Bad{kOptimizer + "  groups: [\"*\"]\n", ":16:12: optimizer.groups[0]: \"*\" is not a map of keys"},
        Bad{kOptimizer + "  groups: [{weight_decay: 0}]\n", ":16:12: optimizer.groups[0].pattern: must be given"},
        Bad{kOptimizer + "  groups: [{pattern: \"*\", rate: 2}]\n", ":16:27: optimizer.groups[0].rate: unknown key"},
        Bad{kOptimizer + "  groups: [{pattern: \"*\", weight_decy: 2}]\n",
            ":16:27: optimizer.groups[0].weight_decy: unknown key; did you mean \"weight_decay\"?"},
        Bad{kOptimizer + "  groups: [{pattern: \"*\", weight_decay: -2}]\n",
            ":16:41: optimizer.groups[0].weight_decay: -2 is impossible: it must be at least 0"},
        Bad{kOptimizer + "  groups:\n    - {pattern: \"*.self_attn.*\"}\n    - {pattern: \"*.mpl.*\"}\n",
            ":18:17: optimizer.groups[1].pattern: \"*.mpl.*\" matches no parameter of the model; did you mean "
            "\"*.mlp.*\"?"},
        Bad{kOptimizer + "  groups: [{pattern: \"*.mlp.*\"}, {pattern: \"*.up_proj.*\"}]\n",
            ":16:44: optimizer.groups[1].pattern: every parameter that \"*.up_proj.*\" matches already belongs to an "
            "earlier group, and the first match counts: move this group up"},
        Bad{kOptimizer + "  muon: {nesterov: true}\n",
            ":16:20: optimizer.muon.nesterov: belongs to optimizer.name muon, not adamw"}));

TEST(Patterns, OfAnOptionNameTheOption) {
  const RecipeFolder folder;
  const fs::path file = folder.write("r.yaml", kSmallRecipe);
  EXPECT_EQ(input_error([&] { load_recipe(file, {"train.freeze=[lm_haed.weight]"}, ""); }),
            "--set train.freeze=[lm_haed.weight]: \"lm_haed.weight\" matches no parameter of the model; did you mean "
            "\"lm_head.weight\"?");
}

TEST(Validate, NamesARateThatHasNoScheduleToFollow) {
  const RecipeFolder folder;
  Recipe recipe = with(folder, "optimizer: {name: muon, learning_rate: 0, muon: {adamw_learning_rate: 0.1}}\n");
  EXPECT_EQ(input_error([&] {
              resolve(recipe, MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}));
            }),
            recipe.locations.at("optimizer.muon.adamw_learning_rate") +
                ": follows the schedule of optimizer.learning_rate, which is 0: use a "
                "peak above 0, or leave adamw_learning_rate out");
}

}  // namespace
}  // namespace meshtrain::testing
