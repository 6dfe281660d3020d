#include "runtime/program/recipe/decisions.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/runtime/program/recipe/fitting_recipe.h"

namespace meshtrain {
namespace {

using testing::fitting_recipe;

MeshLayout mesh(int64_t dp, int64_t cp, int64_t tp) {
  return MeshLayout({{"dp", dp}, {"cp", cp}, {"tp", tp}});
}

TEST(Decisions, NoShardIsTheDefaultUnderTensorParallel) {
  const Recipe recipe = fitting_recipe();
  const Decisions with_tp = resolve(recipe, mesh(2, 2, 2)), without = resolve(recipe, mesh(2, 2, 1)),
                  alone = resolve(recipe, mesh(1, 1, 1));
  EXPECT_EQ(with_tp.sharding.mode, ShardingMode::NoShard);
  EXPECT_EQ(with_tp.sharding.axes, std::vector<std::string>{"dp"});
  EXPECT_EQ(without.sharding.mode, ShardingMode::FullShard);
  EXPECT_EQ(without.sharding.axes, (std::vector<std::string>{"dp", "cp"}));
  EXPECT_EQ(without.sharding.num_ranks, 4);
  EXPECT_EQ(alone.sharding.mode, ShardingMode::NoShard) << "one rank has nothing to shard over";
}

TEST(Decisions, UnitsAreBlocksUnlessTheRecipeDividesThem) {
  Recipe recipe = fitting_recipe();
  EXPECT_FALSE(resolve(recipe, mesh(2, 1, 1)).units.sublayers);
  recipe.parallel.fsdp.unit_layers = 2;
  EXPECT_EQ(resolve(recipe, mesh(2, 1, 1)).units.layers, 2);
  recipe.parallel.fsdp.unit_layers = 1;
  recipe.parallel.fsdp.unit = "sublayer";
  EXPECT_TRUE(resolve(recipe, mesh(2, 1, 1)).units.sublayers);
}

TEST(Decisions, SequenceParallelIsOnWhereTpDividesTheTokens) {
  EXPECT_TRUE(resolve(fitting_recipe(), mesh(1, 1, 2)).sequence_parallel);
  EXPECT_FALSE(resolve(fitting_recipe(), mesh(2, 1, 1)).sequence_parallel);
  Recipe odd = fitting_recipe(1);
  odd.train.sequence_length = 31;
  EXPECT_FALSE(resolve(odd, mesh(1, 1, 2)).sequence_parallel) << "31 tokens";
  Recipe off = fitting_recipe();
  off.parallel.sequence_parallel = "off";
  EXPECT_FALSE(resolve(off, mesh(1, 1, 2)).sequence_parallel);
}

TEST(Decisions, PartsAreContiguousWhereEveryLayerHasAWindow) {
  const auto layout = [](int64_t window, std::vector<std::string> layer_types = {}) {
    Recipe recipe = fitting_recipe();
    recipe.model.shape.sliding_window = window;
    recipe.model.shape.layer_types = std::move(layer_types);
    return resolve(recipe, mesh(1, 2, 1)).context.layout;
  };
  EXPECT_EQ(layout(0), SequenceLayout::Kind::ZigZag);
  EXPECT_EQ(layout(8), SequenceLayout::Kind::Contiguous);
  EXPECT_EQ(layout(32), SequenceLayout::Kind::ZigZag) << "as long as the sequence";
  EXPECT_EQ(layout(8, {"sliding_attention", "full_attention"}), SequenceLayout::Kind::ZigZag);
}

TEST(Decisions, PrecisionIsDtypesAndALossScale) {
  const auto decisions = [](const std::string& word, const std::string& reduce) {
    Recipe recipe = fitting_recipe();
    recipe.train.precision = word;
    recipe.parallel.fsdp.reduce_dtype = reduce;
    return resolve(recipe, mesh(2, 1, 1));
  };
  const auto precision = [&](const std::string& word, const std::string& reduce = "auto") {
    return decisions(word, reduce).precision;
  };
  EXPECT_EQ(precision("fp64").compute, at::kDouble);
  EXPECT_FALSE(precision("fp32").mixed);
  EXPECT_EQ(precision("bf16").compute, at::kBFloat16);
  EXPECT_FALSE(precision("bf16").mixed);
  EXPECT_EQ(precision("bf16").reduce, at::kBFloat16);
  EXPECT_EQ(precision("bf16", "fp32").reduce, at::kFloat);
  EXPECT_EQ(precision("fp64", "fp32").reduce, at::kDouble) << "never less than what layers compute in";
  const Precision bf16_mixed = precision("bf16_mixed", "bf16"), fp16_mixed = precision("fp16_mixed");
  EXPECT_TRUE(bf16_mixed.mixed);
  EXPECT_EQ(bf16_mixed.compute, at::kBFloat16);
  EXPECT_EQ(bf16_mixed.reduce, at::kBFloat16);
  EXPECT_FALSE(decisions("bf16_mixed", "auto").loss_scale);
  EXPECT_EQ(fp16_mixed.compute, at::kHalf);
  EXPECT_EQ(fp16_mixed.reduce, at::kFloat);
  EXPECT_TRUE(decisions("fp16_mixed", "auto").loss_scale) << "without a loss_scale of its own too";
}

TEST(Decisions, ASecondQueueIsForGathersBesideReductions) {
  for (const auto& [mode, two] : std::map<std::string, bool>{
           {"no_shard", false}, {"shard_optimizer", false}, {"shard_grad_op", false}, {"full_shard", true}}) {
    Recipe recipe = fitting_recipe();
    recipe.parallel.fsdp.mode = mode;
    EXPECT_EQ(resolve(recipe, mesh(2, 1, 1)).device.two_queues, two) << mode;
  }
}

TEST(Decisions, StateHasTheDtypeOfWeightsUnlessFp32IsAskedFor) {
  Recipe recipe = fitting_recipe();
  for (const auto& [precision, state] : {std::pair("fp64", at::kDouble),
                                         {"fp32", at::kFloat},
                                         {"bf16", at::kBFloat16},
                                         {"bf16_mixed", at::kFloat},
                                         {"fp16_mixed", at::kFloat}}) {
    recipe.train.precision = precision;
    EXPECT_EQ(resolve(recipe, mesh(1, 1, 1)).optimizer.state_dtype, state) << precision;
  }
  recipe.train.precision = "bf16";
  recipe.optimizer.state_dtype = at::kFloat;
  EXPECT_EQ(resolve(recipe, mesh(1, 1, 1)).optimizer.state_dtype, at::kFloat);
}

TEST(Decisions, TheResidualStreamHasTheDtypeOfActivationsUnlessFp32IsAskedFor) {
  Recipe recipe = fitting_recipe();
  for (const auto& [precision, dtype] :
       {std::pair("fp64", at::kDouble), {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16_mixed", at::kHalf}}) {
    recipe.train.precision = precision;
    EXPECT_EQ(resolve(recipe, mesh(1, 1, 1)).precision.residual, dtype) << precision;
  }
  recipe.train.residual_dtype = "fp32";
  EXPECT_EQ(resolve(recipe, mesh(1, 1, 1)).precision.residual, at::kFloat);
}

TEST(Decisions, AsYamlHasNoAutoThatIsDecidedHere) {
  Recipe recipe = fitting_recipe();
  recipe.train.precision = "fp16_mixed";
  recipe.parallel.fsdp.mode = "hybrid_shard";
  recipe.parallel.fsdp.shard_size = 2;
  recipe.train.activation_checkpointing = {"full", 2};
  EXPECT_EQ(to_yaml(resolve(recipe, mesh(4, 1, 2))), R"(mesh:
  dp: 4
  cp: 1
  tp: 2
precision:
  compute: fp16
  residual: fp16
  shards: fp32
  reduce: fp32
  state: fp32
  loss_scale: dynamic
  stochastic_rounding: false
fsdp:
  mode: hybrid_shard
  axes: [dp]
  ranks: 4
  shard_size: 2
  no_sync: false
  offload: none
sequence_parallel: "on"
context:
  algorithm: all_gather
  layout: zigzag
  reason: "cp=1 exchanges nothing"
activation_checkpointing:
  mode: full
  every: 2
offload_activations: false
device:
  asked: auto
  backend: auto
)");
}

}  // namespace
}  // namespace meshtrain
