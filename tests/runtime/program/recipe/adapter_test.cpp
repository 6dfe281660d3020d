// The section `adapter` of a recipe.

#include <gtest/gtest.h>

#include <set>

#include "runtime/program/forecast/forecast.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/safetensors/writer.h"
#include "tests/runtime/program/recipe/recipe_folder.h"
#include "tests/support/files.h"

namespace meshtrain::testing {
namespace {

Recipe with_adapter(const RecipeFolder& folder, const std::string& keys) {
  return load_recipe(folder.write("r.yaml", kSmallRecipe + "adapter: {" + keys + "}\n"), {}, "");
}

TEST(AdapterRecipe, IsReadAndWritten) {
  const RecipeFolder folder;
  const Recipe recipe =
      with_adapter(folder,
                   "kind: lora, rank: 16, alpha: 32, dropout: 0.05, use_rslora: true, init: gaussian, "
                   "targets: [q_proj, \"*.mlp.*\"], layers: [1], train: [\"*norm*\"]");
  for (const Recipe& each : {recipe, parse_recipe(to_yaml(recipe))}) {
    const AdapterShape expected{.rank = 16,
                                .alpha = 32,
                                .use_rslora = true,
                                .dropout = 0.05,
                                .init = AdapterShape::Init::Gaussian,
                                .targets = {"q_proj", "*.mlp.*"},
                                .layers = {1},
                                .train = {"*norm*"}};
    EXPECT_EQ(each.model.shape.adapter, expected);
  }
  const Recipe plain = load_recipe(folder.write("small.yaml", kSmallRecipe), {}, "");
  EXPECT_FALSE(plain.model.shape.adapter);
  EXPECT_FALSE(parse_recipe(to_yaml(plain)).model.shape.adapter);
  const AdapterShape least = with_adapter(folder, "rank: 4, targets: [all-linear]").model.shape.adapter;
  EXPECT_EQ(least.alpha, 8);
  EXPECT_EQ(least.dropout, 0);
  EXPECT_EQ(least.init, AdapterShape::Init::Kaiming);
}

TEST(AdapterRecipe, SeedsDropoutFromTheRecipe) {
  const RecipeFolder folder;
  Recipe recipe = with_adapter(folder, "rank: 4, targets: [q_proj], dropout: 0.1");
  recipe.train.seed = 7;
  EXPECT_EQ(resolve(recipe, MeshLayout({{"dp", 1}, {"tp", 1}, {"cp", 1}})).shape.adapter.seed, 7U);
}

TEST(AdapterRecipe, LetsEveryParameterOfTheBaseBeFrozen) {
  const RecipeFolder folder;
  const std::string file = folder.write("r.yaml", kSmallRecipe + "adapter: {rank: 4, targets: [q_proj]}\n");
  EXPECT_NO_THROW(load_recipe(file, {"train.freeze=[\"*.weight\"]"}, ""));
  EXPECT_NO_THROW(load_recipe(file, {"optimizer.groups=[{pattern: \"*.lora_B.*\", learning_rate_factor: 16}]"}, ""));
}

TEST(AdapterRecipe, TakesTheFolderOfPeft) {
  const RecipeFolder folder;
  const std::string fixtures = source_folder() + "/tests/fixtures/";
  const auto load = [&](const std::string& name, const std::string& keys) {
    const std::string small = kSmallRecipe.substr(kSmallRecipe.find("data:"));
    return load_recipe(folder.write("r.yaml", "model: {hf: " + fixtures + name + "}\nadapter: {from: " + fixtures +
                                                  "adapters/folders/" + name + keys + "}\n" + small),
                       {}, "");
  };
  const AdapterShape llama = load("llama", "").model.shape.adapter;
  const AdapterShape expected{.rank = 4,
                              .alpha = 6,
                              .dropout = 0.1,
                              .targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
                              .from = fixtures + "adapters/folders/llama"};
  EXPECT_EQ(llama, expected);
  const Recipe phi3 = load("phi3", ", rank: 2, dropout: 0.2, init: gaussian");
  for (const Recipe& each : {phi3, parse_recipe(to_yaml(phi3))}) {
    const AdapterShape& adapter = each.model.shape.adapter;
    EXPECT_EQ(adapter.layers, std::vector<int64_t>{0});
    EXPECT_EQ(adapter.targets,
              (std::vector<std::string>{"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"}));
    EXPECT_TRUE(adapter.use_rslora);
    EXPECT_EQ(adapter.train.size(), 5U);  // norms, whose names all end as "norm"
    EXPECT_EQ(adapter.dropout, 0.2);
  }
  const auto refusal = [&](const std::string& keys) {
    const std::string message = input_error([&] { load("llama", keys); });
    return message.substr(message.find("adapter."));
  };
  EXPECT_EQ(refusal(", rank: 8"), "adapter.rank: 8 differs from the 4 of " + fixtures +
                                      "adapters/folders/llama/adapter_config.json; leave it out, or set adapter.from "
                                      "to null");
  EXPECT_TRUE(refusal(", targets: [q_proj]").starts_with("adapter.targets: ["));
  const std::string frozen = input_error([&] { load("phi3", ", train: [\"*.input_layernorm.*\"]"); });
  EXPECT_NE(frozen.find("would be frozen at the value in the folder adapter.from"), std::string::npos) << frozen;
  EXPECT_TRUE(refusal("/none").starts_with("adapter.from: there is no adapter_config.json in "));
}

TEST(AdapterRecipe, ExportsNoMergedTiedEmbedding) {
  const RecipeFolder folder;
  const std::string file = folder.write("r.yaml", kSmallRecipe + "adapter: {rank: 4, targets: [embed_tokens]}\n");
  const std::string tied = "model.tie_word_embeddings=true";
  EXPECT_NO_THROW(load_recipe(file, {tied}, ""));
  EXPECT_NO_THROW(load_recipe(file, {"train.export=out"}, ""));
  const std::string refusal = input_error([&] { load_recipe(file, {tied, "train.export=out"}, ""); });
  EXPECT_NE(refusal.find("the embedding is also the head, and merging an adapter makes them two tensors"),
            std::string::npos)
      << refusal;
}

TEST(AdapterRecipe, TakesTheTrainedBaseOfAFolder) {
  const RecipeFolder folder;
  const std::filesystem::path fixtures = source_folder() + "/tests/fixtures",
                              adapter = fixtures / "adapters/folders/llama";
  const SafetensorsFile factors(adapter / kPeftWeights), base(fixtures / "llama/model.safetensors");
  std::vector<TensorEntry> entries = factors.entries();
  for (TensorEntry entry : base.entries()) {
    if (entry.name.find("_proj") != std::string::npos) continue;
    entry.name = kPeftPrefix + entry.name;
    entries.push_back(entry);
  }
  const std::filesystem::path own = folder.path() / "own";
  std::filesystem::create_directories(own);
  std::filesystem::copy(adapter / kPeftConfig, own / kPeftConfig);
  SafetensorsWriter writer(own / kPeftWeights, entries);
  for (const TensorEntry& entry : entries) {
    const std::string name = entry.name.substr(std::string(kPeftPrefix).size());
    writer.write(entry.name, factors.contains(entry.name) ? factors.read(entry.name) : base.read(name));
  }
  writer.finish();
  const Recipe recipe = load_recipe(
      folder.write("r.yaml", "model: {hf: " + (fixtures / "llama").string() + "}\nadapter: {from: " + own.string() +
                                 "}\n" + kSmallRecipe.substr(kSmallRecipe.find("data:"))),
      {}, "");
  EXPECT_EQ(recipe.model.shape.adapter.train.size(), entries.size() - factors.entries().size());
}

TEST(AdapterRecipe, ExpertsHaveNone) {
  const RecipeFolder folder;
  const auto load = [&](const std::string& targets) {
    const std::vector<std::string> experts = {"model.family=qwen2_moe", "model.num_experts=4",
                                              "model.num_experts_per_tok=2", "model.moe_intermediate_size=32",
                                              "model.shared_expert_intermediate_size=48"};
    return load_recipe(folder.write("r.yaml", kSmallRecipe + "adapter: {rank: 4, targets: " + targets + "}\n"), experts,
                       "");
  };
  for (const char* target : {"gate_up_proj", "experts", "gate", "\"*.mlp.experts.*\""}) {
    const std::string message = input_error([&] { load("[q_proj, " + std::string(target) + "]"); });
    EXPECT_TRUE(has(message, "names experts, which cannot have adapters: leave it out, or use all-linear")) << message;
  }
  std::set<std::string> names;
  for (const TensorEntry& factor : declared_adapters(load("[all-linear]").model.shape, at::kFloat)) {
    if (factor.name.starts_with("model.layers.0.") && factor.name.ends_with("A.weight")) names.insert(factor.name);
  }
  EXPECT_EQ(names.size(), 7u) << "four of attention, three of the shared expert";
}

TEST(AdapterRecipe, SinksAndBiasesOfExpertsHaveNone) {
  const RecipeFolder folder;
  const auto load = [&](const std::string& target) {
    return load_recipe(folder.write("r.yaml", kSmallRecipe + "adapter: {rank: 4, targets: [q_proj, " + target + "]}\n"),
                       {"model.family=gpt_oss", "model.num_experts=4", "model.num_experts_per_tok=2"}, "");
  };
  for (const char* target : {"experts", "gate", "\"*.mlp.experts.*\"", "\"*_bias\""}) {
    const std::string message = input_error([&] { load(target); });
    EXPECT_TRUE(has(message, "names experts, which cannot have adapters")) << message;
  }
  const std::string message = input_error([&] { load("sinks"); });
  EXPECT_TRUE(has(message, "\"sinks\" matches no layer that may have an adapter")) << message;
}

TEST(AdapterRecipe, AForecastOfFewerLayersNeedsNoFolder) {
  const RecipeFolder folder;
  const std::string text = kSmallRecipe + "adapter: {rank: 4, targets: [all-linear]}\n";
  Recipe recipe = load_recipe(folder.write("r.yaml", text), {"model.num_hidden_layers=8"}, "");
  const MeshLayout alone({{"dp", 1}, {"cp", 1}, {"tp", 1}});
  const int64_t bytes = forecast(resolve(recipe, alone), {1, false}).step.memory().total();
  recipe.model.shape.adapter.from = folder.path() / "of 8 layers";
  EXPECT_EQ(forecast(resolve(recipe, alone), {1, false}).step.memory().total(), bytes);
}

TEST(AdapterRecipe, IsRefusedWithItsLocation) {
  const RecipeFolder folder;
  const auto refusal = [&](const std::string& keys) {
    const std::string message = input_error([&] { with_adapter(folder, keys); });
    return message.substr(message.find("adapter"));
  };
  EXPECT_EQ(refusal("rank: 4"), "adapter.targets: must be given");
  EXPECT_EQ(refusal("rank: 4, targets: []"), "adapter.targets: is empty: name layers, as in [all-linear]");
  EXPECT_EQ(refusal("targets: [q_proj]"), "adapter.rank: must be given");
  EXPECT_EQ(refusal("kind: dora, rank: 4, targets: [q_proj]").substr(0, 20), "adapter.kind: \"dora\"");
  EXPECT_EQ(refusal("rank: 4, targets: [q_proj, k_prj]"),
            "adapter.targets: \"k_prj\" matches no layer that may have an adapter: use q_proj, k_proj, v_proj, o_proj, "
            "gate_proj, up_proj, down_proj, all-linear, embed_tokens, lm_head, or a pattern for names such as "
            "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(refusal("rank: 4, targets: [q_proj, lm_head], layers: [0]"),
            "adapter.targets: lm_head is outside the blocks, and with adapter.layers only blocks have adapters, as in "
            "PEFT: leave adapter.layers out, and name layers of blocks by patterns such as \"*.layers.0.*.q_proj\"");
  EXPECT_EQ(refusal("rank: 4, targets: [q_proj], layers: [0, 2]"),
            "adapter.layers: 2 is not a block: the model has blocks 0 to 1");
  EXPECT_EQ(refusal("rank: 4, targets: [q_proj], train: [\"*.norms.*\"]").substr(0, 60),
            "adapter.train: \"*.norms.*\" matches no parameter of the model");
  EXPECT_EQ(refusal("rank: 4, targets: [q_proj], dropout: 1"), "adapter.dropout: 1 is impossible: it must be below 1");
}

}  // namespace
}  // namespace meshtrain::testing
