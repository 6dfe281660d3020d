// train.experts: what it says, the folder's defaults, and what is refused.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "tests/runtime/program/recipe/fitting_recipe.h"
#include "tests/runtime/program/recipe/recipe_folder.h"
#include "tests/support/files.h"

namespace meshtrain::testing {
namespace {

const std::string kMixture = "model.family=mixtral", kExperts = "model.num_experts=4",
                  kChosen = "model.num_experts_per_tok=2";

/// Returns a recipe of a mixture with `setting`.
Recipe balanced(const RecipeFolder& folder, const std::string& setting) {
  const auto file = folder.write("mixture.yaml", kSmallRecipe);
  std::vector<std::string> settings = {kMixture, kExperts, kChosen, "model.num_key_value_heads=2"};
  if (!setting.empty()) settings.push_back(setting);
  return load_recipe(file, settings, "");
}

TEST(BalancingRecipe, ReadsEveryBalance) {
  const RecipeFolder folder;
  EXPECT_FALSE(balanced(folder, "").train.experts);
  for (const auto& [word, scope] : balance_words()) {
    if (scope == BalanceScope::None) continue;
    const Recipe recipe = balanced(folder, "train.experts={balance: " + word + ", coefficient: 0.02, z_loss: 0.001}");
    ASSERT_TRUE(recipe.train.experts);
    EXPECT_EQ(recipe.train.experts->scope, scope);
    EXPECT_EQ(recipe.train.experts->coefficient, 0.02);
    EXPECT_EQ(recipe.train.experts->z_loss, 0.001);
    const BalancingOptions decided = resolve(recipe, MeshLayout::fit({}, training_axes(), 1)).balancing;
    EXPECT_EQ(decided.scope, scope);
    EXPECT_EQ(decided.coefficient, 0.02);
    EXPECT_EQ(decided.z_loss, 0.001);
  }
  EXPECT_EQ(balanced(folder, "train.experts.z_loss=0.001").train.experts->scope, BalanceScope::None);
}

TEST(BalancingRecipe, RefusesWhatHasNoMeaning) {
  const RecipeFolder folder;
  const auto refusal = [&](const std::string& setting) -> std::string {
    try {
      balanced(folder, setting);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_TRUE(has(refusal("train.experts.balance=sequence"), "train.experts.coefficient: must be given"));
  EXPECT_TRUE(has(refusal("train.experts.coefficient=0.1"), "needs train.experts.balance: sequence"));
  EXPECT_TRUE(has(refusal("train.experts={balance: global_aux_loss, coefficient: 0.1}"),
                  "running mean over the micro-batches"));
}

TEST(BalancingRecipe, IsRefusedWhereTheMeshOrTheModelCannotHaveIt) {
  const auto refusal = [](const Recipe& recipe, int64_t pp) -> std::string {
    try {
      resolve(recipe, MeshLayout::fit({{"pp", pp}}, training_axes(), pp));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  Recipe recipe = fitting_recipe();
  recipe.train.experts = BalancingOptions{BalanceScope::AllLayers, 0.1};
  EXPECT_TRUE(has(refusal(recipe, 1), "train.experts: balances the experts of a model, but a llama has none"));
  recipe.model.shape.family = "mixtral";
  recipe.model.shape.experts.num_experts = 4;
  recipe.model.shape.experts.num_experts_per_tok = 2;
  EXPECT_EQ(refusal(recipe, 1), "");
  EXPECT_TRUE(has(refusal(recipe, 2), "train.experts.balance: transformers joins the layers of all stages"));
  recipe.train.experts->scope = BalanceScope::MicroBatch;
  EXPECT_EQ(refusal(recipe, 2), "");
}

TEST(BalancingRecipe, OfAFolderIsThatOfTransformers) {
  const RecipeFolder folder;
  const auto load = [&](const nlohmann::json& keys, const std::vector<std::string>& settings) {
    nlohmann::json config = nlohmann::json::parse(std::ifstream(source_folder() + "/tests/fixtures/olmoe/config.json"));
    config.erase("router_aux_loss_coef");
    config.update(keys);
    folder.write("m/config.json", config.dump());
    const std::string rest = kSmallRecipe.substr(kSmallRecipe.find("data:"));
    const auto file = folder.write("hf.yaml", "model: {hf: m, init: random}\n" + rest);
    return load_recipe(file, settings, "");
  };
  EXPECT_FALSE(load({{"router_aux_loss_coef", 0.3}}, {}).train.experts) << "it counts with output_router_logits alone";
  const Recipe given = load({{"output_router_logits", true}, {"router_aux_loss_coef", 0.3}}, {});
  ASSERT_TRUE(given.train.experts);
  EXPECT_EQ(given.train.experts->scope, BalanceScope::AllLayers);
  EXPECT_EQ(given.train.experts->coefficient, 0.3);
  EXPECT_EQ(load({{"output_router_logits", true}}, {}).train.experts->coefficient, 0.01) << "of an absent key";
  EXPECT_FALSE(load({{"output_router_logits", true}, {"router_aux_loss_coef", 0.0}}, {}).train.experts);
  const Recipe off = load({{"output_router_logits", true}}, {"train.experts.balance=none"});
  EXPECT_EQ(off.train.experts->scope, BalanceScope::None);
  const Recipe other = load({{"output_router_logits", true}}, {"train.experts.balance=sequence"});
  EXPECT_EQ(other.train.experts->scope, BalanceScope::Sequence);
  EXPECT_EQ(other.train.experts->coefficient, 0.01);
}

}  // namespace
}  // namespace meshtrain::testing
