#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/layout.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "tests/support/files.h"

namespace meshtrain {
namespace {

struct Documented {
  std::string file;
  int64_t dp, tp, cp;
};

/// Returns configurations A to H of transformers' examples/3D_parallel.py.
const std::vector<Documented>& documented() {
  static const std::vector<Documented> all = {
      {"a_dp2_tp2", 2, 2, 1}, {"b_dp2_cp2", 2, 1, 2}, {"c_tp2_cp2", 1, 2, 2}, {"d_dp2_tp2_cp2", 2, 2, 2},
      {"e_cp4", 1, 1, 4},     {"f_dp4", 4, 1, 1},     {"g_tp4", 1, 4, 1},     {"h_single", 1, 1, 1},
  };
  return all;
}

std::filesystem::path source() {
  return testing::source_folder();
}

/// Loads a recipe without its weights, which are not part of the repository.
Recipe load(const std::filesystem::path& file, std::vector<std::string> overrides = {}) {
  overrides.emplace_back("model.init=random");
  return load_recipe(source() / "recipes/hf_3d" / file, overrides, "");
}

/// Expects the layout that the documented recipe and its small sibling share; both fit the documented number of ranks.
void expect_layout(const Recipe& recipe, const Documented& expected) {
  EXPECT_EQ(recipe.parallel.mesh.at("dp"), expected.dp);
  EXPECT_EQ(recipe.parallel.mesh.at("tp"), expected.tp);
  EXPECT_EQ(recipe.parallel.mesh.at("cp"), expected.cp);
  EXPECT_EQ(recipe.parallel.order, (std::vector<std::string>{"pp", "dp", "tp", "cp"}));
  EXPECT_EQ(recipe.parallel.fsdp.mode, "no_shard");
  EXPECT_EQ(recipe.parallel.sequence_parallel, "off");
  EXPECT_EQ(recipe.parallel.context.algorithm, "all_gather");
  EXPECT_EQ(recipe.parallel.context.layout, "contiguous");
  EXPECT_FALSE(recipe.data.shuffle);
  EXPECT_EQ(recipe.train.sequence_length, 1024);
  EXPECT_EQ(recipe.train.global_batch, 8);
  EXPECT_EQ(recipe.train.micro_batch, 8 / expected.dp) << "there is no accumulation";
  EXPECT_EQ(recipe.train.clip_norm, 1.0);
  EXPECT_EQ(recipe.optimizer.name, "adamw");
  EXPECT_EQ(recipe.optimizer.betas, (std::array<double, 2>{0.9, 0.999}));
  EXPECT_EQ(recipe.optimizer.eps, 1e-8);
  EXPECT_EQ(recipe.optimizer.weight_decay, 0.1);
  EXPECT_EQ(recipe.optimizer.decay, DecayScope::All);
  EXPECT_EQ(recipe.schedule.name, Schedule::Constant);
  EXPECT_EQ(recipe.schedule.warmup_steps, 0);
  const MeshLayout layout =
      MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, expected.dp * expected.tp * expected.cp);
  EXPECT_NO_THROW(resolve(recipe, layout));
}

TEST(DocumentedRecipes, HaveTheDocumentedValues) {
  for (const Documented& expected : documented()) {
    SCOPED_TRACE(expected.file);
    const Recipe recipe = load(expected.file + ".yaml");
    expect_layout(recipe, expected);
    EXPECT_EQ(recipe.model.hf, source() / "recipes/models/SmolLM2-1.7B");
    EXPECT_EQ(recipe.data.tokens, source() / "data/tinystories_1025.bin");
    EXPECT_EQ(recipe.data.dtype, "uint16");
    EXPECT_EQ(recipe.data.layout, SampleLayout::Records);
    EXPECT_EQ(recipe.train.steps, 10000);
    EXPECT_EQ(recipe.train.precision, "bf16");
    EXPECT_EQ(recipe.optimizer.learning_rate, 1e-5);
    EXPECT_EQ(recipe.model.shape.num_hidden_layers, 24);
    EXPECT_EQ(recipe.model.shape.vocab_size, 49152);
    EXPECT_EQ(recipe.model.shape.rope_theta, 130000);
    EXPECT_TRUE(recipe.model.shape.tie_word_embeddings);
  }
}

TEST(DocumentedRecipes, SmallSiblingsKeepMeshAndProportions) {
  for (const Documented& expected : documented()) {
    SCOPED_TRACE(expected.file);
    const Recipe recipe = load("cpu/" + expected.file + "_small.yaml");
    expect_layout(recipe, expected);
    EXPECT_EQ(recipe.model.init, "random");
    EXPECT_TRUE(recipe.model.hf.empty());
    const ModelShape& shape = recipe.model.shape;
    EXPECT_EQ(shape.intermediate_size, 4 * shape.hidden_size);
    EXPECT_EQ(shape.num_key_value_heads, shape.num_attention_heads);
    EXPECT_TRUE(shape.tie_word_embeddings);
    EXPECT_EQ(recipe.train.precision, "fp32");
    EXPECT_EQ(recipe.device, "cpu");
  }
}

TEST(DocumentedRecipes, StartFromPublishedWeightsAndSayHowToGetThem) {
  const std::filesystem::path file = source() / "recipes/hf_3d/h_single.yaml";
  if (std::filesystem::exists(source() / "recipes/models/SmolLM2-1.7B/model.safetensors")) {
    EXPECT_EQ(load_recipe(file, {}, "").model.init, "pretrained");
    return;
  }
  try {
    load_recipe(file, {}, "");
    FAIL() << "loaded without weights";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("python3 tools/fetch_3d_data.py"), std::string::npos) << error.what();
  }
}

TEST(DocumentedRecipes, AlternativeModelHasItsRopeScaling) {
  const Recipe recipe = load("h_single.yaml", {"model.hf=" + (source() / "recipes/models/Llama-3.2-1B").string()});
  const ModelShape& shape = recipe.model.shape;
  EXPECT_EQ(shape.num_hidden_layers, 16);
  EXPECT_EQ(shape.num_key_value_heads, 8);
  EXPECT_EQ(shape.vocab_size, 128256);
  ASSERT_TRUE(shape.rope_scaling.has_value());
  EXPECT_EQ(shape.rope_scaling->factor, 32);
  EXPECT_EQ(shape.rope_scaling->original_max_position_embeddings, 8192);
}

}  // namespace
}  // namespace meshtrain
