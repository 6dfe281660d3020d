#include "runtime/program/verify/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "mesh/base/error.h"
#include "mesh/base/files/glob.h"
#include "mesh/device/aten.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/recipe/patterns.h"

namespace meshtrain {
namespace {

MeshLayout mesh(int64_t dp, int64_t cp, int64_t tp) {
  return MeshLayout({{"dp", dp}, {"cp", cp}, {"tp", tp}});
}

Recipe recipe_with(const ModelShape& shape) {
  Recipe recipe;
  recipe.name = "shape";
  recipe.model.shape = shape;
  recipe.data.tokens = "/tokens.bin";
  recipe.train.sequence_length = 1024;
  recipe.train.global_batch = 64;
  recipe.train.steps = 10;
  recipe.optimizer.learning_rate = 1e-3;
  return recipe;
}

/// Returns shapes of published models, and unusual ones.
std::vector<ModelShape> shapes() {
  std::vector<ModelShape> all;
  const auto add = [&](int64_t hidden, int64_t features, int64_t layers, int64_t heads, int64_t kv_heads, int64_t dim,
                       int64_t vocabulary) {
    ModelShape shape;
    shape.hidden_size = hidden;
    shape.intermediate_size = features;
    shape.num_hidden_layers = layers;
    shape.num_attention_heads = heads;
    shape.num_key_value_heads = kv_heads;
    shape.head_dim = dim;
    shape.vocab_size = vocabulary;
    all.push_back(shape);
  };
  add(2048, 8192, 24, 32, 32, 64, 49152);    // SmolLM2-1.7B
  add(2048, 8192, 16, 32, 8, 64, 128256);    // Llama-3.2-1B
  add(4096, 14336, 32, 32, 8, 128, 128256);  // Llama-3-8B
  add(1024, 3072, 28, 16, 8, 128, 151936);   // Qwen3-0.6B: heads wider than the residual stream
  add(896, 4864, 24, 14, 2, 64, 151936);     // Qwen2-0.5B
  add(4096, 22016, 64, 48, 24, 96, 50257);
  add(6144, 16384, 40, 48, 16, 128, 32003);
  add(64, 80, 2, 16, 8, 8, 97);
  add(12, 24, 1, 24, 24, 2, 9);
  return all;
}

std::vector<MeshLayout> meshes() {
  std::vector<MeshLayout> all;
  for (int64_t cp : {1, 2, 3, 4, 8, 16})
    for (int64_t tp : {1, 2, 3, 4, 6, 8}) all.push_back(mesh(1, cp, tp));
  return all;
}

bool fits(const ModelShape& shape, int64_t tp) {
  return shape.num_attention_heads % tp == 0 && shape.num_key_value_heads % tp == 0 &&
         shape.intermediate_size % tp == 0;
}

/// Calls `check` with every shape on every mesh that it fits, and with the shrunk shape.
template <class Check>
void for_each_shrunk(const Check& check) {
  int64_t cases = 0;
  for (const ModelShape& shape : shapes()) {
    for (const MeshLayout& layout : meshes()) {
      const int64_t tp = layout.size("tp"), cp = layout.size("cp");
      if (!fits(shape, tp)) continue;
      ++cases;
      std::ostringstream trace;
      trace << shape.num_attention_heads << " heads, " << shape.num_key_value_heads << " KV heads, hidden "
            << shape.hidden_size << ", vocabulary " << shape.vocab_size << " on " << layout.describe();
      SCOPED_TRACE(trace.str());
      check(shape, shrink(recipe_with(shape), layout).model.shape, tp, cp, layout);
    }
  }
  EXPECT_GT(cases, 150);
}

TEST(Shrink, KeepsWhatDividesHeads) {
  for_each_shrunk([](const ModelShape& from, const ModelShape& to, int64_t tp, int64_t cp, const MeshLayout&) {
    EXPECT_TRUE(fits(to, tp));
    const int64_t before = from.num_key_value_heads / tp, after = to.num_key_value_heads / tp;
    EXPECT_EQ(std::gcd(after, cp), std::gcd(before, cp)) << "Ulysses repeats heads otherwise";
    EXPECT_EQ(after > 1, before > 1);
    EXPECT_EQ(to.num_attention_heads / to.num_key_value_heads, from.num_attention_heads / from.num_key_value_heads);
    EXPECT_EQ(to.num_attention_heads % to.num_key_value_heads, 0);
    const bool shared_before = from.num_attention_heads / tp % cp == 0;
    EXPECT_EQ(to.num_attention_heads / tp % cp == 0, shared_before);
    EXPECT_EQ(to.head_dim % 2, 0);
  });
}

TEST(Shrink, KeepsProportions) {
  for_each_shrunk([](const ModelShape& from, const ModelShape& to, int64_t tp, int64_t, const MeshLayout&) {
    const double hidden = static_cast<double>(to.num_attention_heads * to.head_dim) *
                          static_cast<double>(from.hidden_size) /
                          static_cast<double>(from.num_attention_heads * from.head_dim);
    EXPECT_NEAR(static_cast<double>(to.hidden_size), std::max(hidden, 8.0), 0.5);
    const double features =
        static_cast<double>(to.hidden_size * from.intermediate_size) / static_cast<double>(from.hidden_size);
    const double within = static_cast<double>(tp);  // one feature more or less on each rank, at least one
    EXPECT_NEAR(static_cast<double>(to.intermediate_size), features, within);
    EXPECT_GE(to.intermediate_size, tp);
  });
}

/// Returns the number of vocabulary rows on each tp rank.
std::vector<int64_t> held(int64_t vocab_size, int64_t tp) {
  const int64_t chunk = (vocab_size + tp - 1) / tp;
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < tp; ++rank) {
    const int64_t first = std::min(rank * chunk, vocab_size);
    rows.push_back(std::min(chunk, vocab_size - first));
  }
  return rows;
}

TEST(Shrink, KeepsThePaddingOfTheVocabulary) {
  for (int64_t tp : {1, 2, 3, 4, 7, 8, 16, 64}) {
    for (int64_t size : {1, 9, 63, 64, 65, 97, 200, 1000, 4097, 32003, 50257, 128256}) {
      ModelShape shape = shapes().front();
      shape.num_attention_heads = shape.num_key_value_heads = shape.intermediate_size = 64 * 3 * 7;
      shape.vocab_size = size;
      const int64_t small = shrink(recipe_with(shape), mesh(1, 1, tp)).model.shape.vocab_size;
      EXPECT_LE(small, size);
      EXPECT_EQ(small % tp, size % tp);
      const std::vector<int64_t> before = held(size, tp), after = held(small, tp);
      EXPECT_EQ(before.front() - before.back(), after.front() - after.back()) << size << " over tp=" << tp;
      EXPECT_EQ(std::count(before.begin(), before.end(), 0), std::count(after.begin(), after.end(), 0));
    }
  }
}

TEST(Shrink, IsSmallAndChangesNothingSmall) {
  for_each_shrunk([](const ModelShape& from, const ModelShape& to, int64_t tp, int64_t, const MeshLayout& layout) {
    EXPECT_LE(to.num_hidden_layers, 2);
    EXPECT_LE(to.num_hidden_layers, from.num_hidden_layers);
    EXPECT_LE(to.hidden_size, from.hidden_size);
    EXPECT_LE(to.intermediate_size, from.intermediate_size);
    EXPECT_LE(to.num_attention_heads, from.num_attention_heads);
    EXPECT_LE(to.vocab_size, 64 + tp * tp);
    const ModelShape again = shrink(recipe_with(to), layout).model.shape;
    EXPECT_EQ(to_yaml(recipe_with(again)), to_yaml(recipe_with(to)));
  });
}

// The small model has a layer of each kind, where the large one has two kinds, and heads of which the same part turns.
TEST(Shrink, KeepsTheKindsOfLayersAndHeads) {
  ModelShape shape = shapes().front();
  shape.num_hidden_layers = 6;
  shape.head_dim = 96;
  shape.family = "gemma3_text";
  shape.sliding_window = 4;
  const std::string slides = "sliding_attention", full = "full_attention";
  shape.layer_types = {slides, slides, slides, slides, slides, full};
  EXPECT_EQ(shrink(recipe_with(shape), mesh(1, 1, 1)).model.shape.layer_types, (std::vector{slides, full}));

  shape.family = "smollm3";
  shape.layer_types = {};
  shape.sliding_window = 0;
  shape.no_rope_layers = {1, 1, 1, 0, 1, 1};
  EXPECT_EQ(shrink(recipe_with(shape), mesh(1, 1, 1)).model.shape.no_rope_layers, (std::vector<int64_t>{1, 0}));

  shape.family = "phi3";
  shape.no_rope_layers = {};
  shape.partial_rotary_factor = 0.75;
  RopeScaling& scaling = shape.rope_scaling.emplace();
  scaling.type = "longrope";
  for (int i = 0; i < 36; ++i) {
    scaling.short_factor.push_back(1 + i);
    scaling.long_factor.push_back(2 + i);
  }
  const ModelShape small = shrink(recipe_with(shape), mesh(1, 1, 1)).model.shape;
  EXPECT_EQ(rotary_features(small), 6);
  EXPECT_EQ(small.rope_scaling->short_factor, (std::vector<double>{1, 13, 25}));
  EXPECT_EQ(small.rope_scaling->long_factor, (std::vector<double>{2, 14, 26}));
}

// Ids of every file of the recipe are in the small vocabulary.
TEST(Shrink, FoldsTheIdsOfAllSources) {
  Recipe recipe = recipe_with(shapes().front());
  recipe.data.mixture.resize(2);
  recipe.data.mixture[1].documents = 700;
  recipe.data.mixture[1].ignore_id = 701;
  recipe.evaluate.documents = 702;
  const Recipe small = shrink(recipe, mesh(1, 1, 1));
  const int64_t size = small.model.shape.vocab_size;
  EXPECT_EQ(small.data.mixture[1].documents, 700 % size);
  EXPECT_EQ(small.data.mixture[1].ignore_id, 701 % size);
  EXPECT_EQ(small.evaluate.documents, 702 % size);
}

TEST(Shrink, KeepsEverythingElse) {
  Recipe recipe = recipe_with(shapes().front());
  recipe.train.micro_batch = 4;
  recipe.parallel.sequence_parallel = "on";
  recipe.parallel.context.layout = "zigzag";
  recipe.data.ignore_id = 70;
  recipe.data.documents = 49151;
  const MeshLayout layout = mesh(2, 2, 2);
  resolve(recipe, layout);
  Recipe small = shrink(recipe, layout);
  EXPECT_NO_THROW(resolve(small, layout));
  EXPECT_EQ(small.data.ignore_id, 70 % 64);
  EXPECT_EQ(small.data.documents, 49151 % 64);
  EXPECT_GT(small.model.shape.initializer_range, recipe.model.shape.initializer_range);
  small.model = recipe.model;
  small.data = recipe.data;
  EXPECT_EQ(to_yaml(small), to_yaml(recipe));
}

TEST(FoldIds, KeepsWhatIsIgnored) {
  StepBatch batch;
  batch.micro_batches.push_back({at::tensor({5, 64, 129}, at::kLong), at::tensor({64, -100, 5}, at::kLong)});
  batch.num_counted = 2;
  fold_ids(batch, 64);
  EXPECT_TRUE(at::equal(batch.micro_batches[0].inputs, at::tensor({5, 0, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.micro_batches[0].labels, at::tensor({0, -100, 5}, at::kLong)));
}

TEST(Shrink, HasExpertsThatEpDivides) {
  Recipe recipe = recipe_with(shapes().front());
  recipe.model.shape.family = "qwen2_moe";
  ExpertsShape& experts = recipe.model.shape.experts;
  experts.num_experts = 96, experts.num_experts_per_tok = 5, experts.moe_intermediate_size = 64;
  for (const auto& [ep, num_experts] : {std::pair(1, 10), {2, 10}, {3, 12}, {8, 16}, {16, 16}, {96, 96}}) {
    const MeshLayout layout({{"dp", ep}, {"cp", 1}, {"tp", 1}}, ep);
    EXPECT_EQ(shrink(recipe, layout).model.shape.experts.num_experts, num_experts) << ep;
  }
}

TEST(Shrink, HasALayerForEachStage) {
  Recipe recipe = recipe_with(shapes().front());
  recipe.model.shape.sliding_window = 16;
  recipe.model.shape.layer_types.assign(24, "sliding_attention");
  recipe.model.shape.layer_types[5] = "full_attention";
  recipe.parallel.pipeline = {"interleaved", 2, {}};
  const MeshLayout layout({{"pp", 2}, {"dp", 1}, {"cp", 1}, {"tp", 1}});
  const Recipe small = shrink(recipe, layout);
  EXPECT_EQ(small.model.shape.num_hidden_layers, 4);
  EXPECT_EQ(small.model.shape.layer_types,
            (std::vector<std::string>{"sliding_attention", "full_attention", "sliding_attention", "full_attention"}));
  EXPECT_EQ(resolve(small, layout).pipeline.blocks, (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_EQ(shrink(recipe, mesh(2, 1, 1)).model.shape.num_hidden_layers, 2) << "without a pipeline";
}

TEST(Shrink, KeepsStagesThatAreNotEqual) {
  Recipe recipe = recipe_with(shapes().front());
  recipe.parallel.pipeline = {"interleaved", 2, {4, 6, 7, 7}};
  const MeshLayout layout({{"pp", 2}, {"dp", 1}, {"cp", 1}, {"tp", 1}});
  Recipe small = shrink(recipe, layout);
  EXPECT_EQ(small.model.shape.num_hidden_layers, 7);
  EXPECT_EQ(resolve(small, layout).pipeline.blocks, (std::vector<int64_t>{1, 2, 2, 2}));
  recipe.parallel.pipeline.layers = {6, 6, 6, 6};
  small = shrink(recipe, layout);
  EXPECT_EQ(resolve(small, layout).pipeline.blocks, (std::vector<int64_t>{1, 1, 1, 1}));
  small = shrink(recipe, mesh(2, 1, 1));
  EXPECT_TRUE(small.parallel.pipeline.layers.empty()) << "without a pipeline";
  EXPECT_NO_THROW(resolve(small, mesh(2, 1, 1)));
}

TEST(Shrink, KeepsWhatIsSaidOfSingleParameters) {
  const MeshLayout layout({{"dp", 1}, {"cp", 1}, {"tp", 1}});
  const auto shrunk = [&](std::vector<std::string> freeze, std::vector<GroupOptions> groups) {
    Recipe recipe;
    recipe.model.shape.hidden_size = 64;
    recipe.model.shape.intermediate_size = 128;
    recipe.model.shape.num_hidden_layers = 12;
    recipe.model.shape.num_attention_heads = recipe.model.shape.num_key_value_heads = 4;
    recipe.model.shape.head_dim = 16;
    recipe.model.shape.vocab_size = 100;
    recipe.train.freeze = std::move(freeze);
    recipe.optimizer.groups = std::move(groups);
    return shrink(recipe, layout);
  };
  const auto frozen = [](const Recipe& recipe, const std::string& name) {
    return first_match(recipe.train.freeze, name).has_value();
  };
  const Recipe bottom = shrunk({"model.embed_tokens.*", "model.layers.[0-9].*"}, {{"*.layers.11.*", 3, 0.5}});
  EXPECT_EQ(bottom.model.shape.num_hidden_layers, 2);
  EXPECT_TRUE(frozen(bottom, "model.embed_tokens.weight"));
  EXPECT_TRUE(frozen(bottom, "model.layers.0.mlp.up_proj.weight"));
  EXPECT_FALSE(frozen(bottom, "model.layers.1.mlp.up_proj.weight")) << "stands for 10, not for 11";
  EXPECT_TRUE(bottom.optimizer.groups.empty());
  // Only one of 12 layers is trained, and another one is in a group.
  const Recipe one = shrunk({"model.layers.[0-68-9].*", "model.layers.1?.*", "lm_head.*", "model.norm.*", "*embed*"},
                            {{"model.layers.3.*", 2, {}}, {"*.7.mlp.*", 3, 0.5}});
  EXPECT_TRUE(frozen(one, "model.layers.0.mlp.up_proj.weight"));
  EXPECT_FALSE(frozen(one, "model.layers.1.mlp.up_proj.weight"));
  ASSERT_EQ(one.optimizer.groups.size(), 3u);
  EXPECT_EQ(one.optimizer.groups[0], (GroupOptions{"model.layers.1.mlp.gate_proj.weight", 3, 0.5}));
}

}  // namespace
}  // namespace meshtrain
