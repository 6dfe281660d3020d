#include "runtime/program/recipe/pipeline.h"

#include <gtest/gtest.h>

#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/pipeline_notes.h"
#include "tests/runtime/program/recipe/fitting_recipe.h"
#include "tests/support/messages.h"

namespace meshtrain {
namespace {

using testing::fitting_recipe;
using testing::message;
using Counts = std::vector<int64_t>;

MeshLayout pipelined(int64_t pp, int64_t dp = 1, int64_t tp = 1) {
  return MeshLayout::fit({{"pp", pp}, {"dp", dp}, {"tp", tp}}, training_axes(), pp * dp * tp);
}

/// Returns a recipe of `layers` layers with so many samples in a step, one at a time.
Recipe recipe_of(int64_t layers, int64_t samples = 8) {
  Recipe recipe = fitting_recipe();
  recipe.model.shape.num_hidden_layers = layers;
  recipe.train.global_batch = samples;
  recipe.train.micro_batch = 1;
  return recipe;
}

Recipe staged(Recipe recipe, const PipelineRecipe& pipeline) {
  recipe.parallel.pipeline = pipeline;
  return recipe;
}

std::string refusal(const Recipe& recipe, const MeshLayout& layout) {
  return message<InputError>([&] { resolve(recipe, layout); });
}

TEST(PipelineChoice, ThereIsNoneOnAMeshWithoutPp) {
  EXPECT_TRUE(resolve(staged(recipe_of(4), {"interleaved", 2, {1, 1, 1, 1}}), pipelined(1, 2)).pipeline.blocks.empty());
}

// Both ends of the pipeline sum the gradient of a tied weight.
TEST(PipelineChoice, SomeTiedModelsAreRefused) {
  Recipe recipe = recipe_of(4);
  recipe.model.shape.tie_word_embeddings = true;
  Recipe other = recipe;
  other.model.shape.adapter = {.rank = 2, .targets = {"embed_tokens", "q_proj"}};
  EXPECT_NO_THROW(resolve(other, pipelined(2))) << "the weight itself is frozen";
  other.model.shape.adapter.train = {"model.embed_tokens.weight"};
  EXPECT_EQ(refusal(other, pipelined(2)),
            "adapter.targets: the embedding is trained and has an adapter, and the head in another stage of the "
            "pipeline shares its weight: leave one of the two out");
}

TEST(PipelineChoice, TheHeadCountsInTheLastStage) {
  Recipe recipe = recipe_of(8);
  EXPECT_EQ(resolve(recipe, pipelined(2)).pipeline.blocks, (Counts{4, 4}));
  recipe.model.shape.vocab_size = 60'000;
  const Counts blocks = resolve(recipe, pipelined(2)).pipeline.blocks;
  EXPECT_GT(blocks[0], blocks[1]) << "the head of a large vocabulary costs as much as some blocks";
  EXPECT_EQ(blocks[0] + blocks[1], 8);
}

TEST(PipelineChoice, SeveralStagesOnEachRankAreInterleaved) {
  const PipelineChoice choice = resolve(staged(recipe_of(8), {"auto", 2, {}}), pipelined(2)).pipeline;
  EXPECT_EQ(choice.schedule, ScheduleKind::Interleaved);
  EXPECT_EQ(choice.blocks, (Counts{2, 2, 2, 2}));
  EXPECT_EQ(describe(choice), "interleaved over 4 stages of 2 layers");
  EXPECT_EQ(resolve(recipe_of(8), pipelined(2)).pipeline.schedule, ScheduleKind::OneForwardOneBackward);
}

TEST(PipelineChoice, TheRecipesLayersAreTaken) {
  const PipelineChoice choice = resolve(staged(recipe_of(8), {"1f1b", 1, {1, 3, 4}}), pipelined(3)).pipeline;
  EXPECT_EQ(choice.blocks, (Counts{1, 3, 4}));
  EXPECT_EQ(describe(choice), "1f1b over 3 stages of 1, 3 and 4 layers");
}

TEST(PipelineChoice, WhatCannotBeIsRefusedWithItsNumbers) {
  EXPECT_EQ(refusal(recipe_of(3), pipelined(4)),
            "parallel.mesh: pp=4 makes 4 stages, but the model has only 3 layers: use a smaller pp");
  EXPECT_EQ(refusal(staged(recipe_of(3), {"auto", 2, {}}), pipelined(2)),
            "parallel.mesh: pp=2 x stages_per_rank 2 makes 4 stages, but the model has only 3 layers: use a smaller pp "
            "or fewer stages a rank");
  EXPECT_EQ(refusal(staged(recipe_of(8), {"auto", 1, {8}}), pipelined(2)),
            "parallel.pipeline.layers: has 1 number, but the pipeline has 2 stages: give the number of layers of each "
            "stage");
  EXPECT_EQ(refusal(staged(recipe_of(8), {"auto", 1, {4, 5}}), pipelined(2)),
            "parallel.pipeline.layers: add up to 9, but the model has 8 layers: give each layer to one stage");
  EXPECT_EQ(refusal(staged(recipe_of(8), {"1f1b", 2, {}}), pipelined(2)),
            "parallel.pipeline.schedule: 1f1b has one stage on each rank, but parallel.pipeline.stages_per_rank is 2: "
            "use interleaved, or leave that key out");
  EXPECT_EQ(refusal(staged(recipe_of(8), {"interleaved", 1, {}}), pipelined(2)),
            "parallel.pipeline.schedule: interleaved needs several stages on each rank: set "
            "parallel.pipeline.stages_per_rank to 2 or more, or use 1f1b");
  EXPECT_EQ(refusal(staged(recipe_of(8, 6), {"auto", 2, {}}), pipelined(2, 2)),
            "parallel.pipeline.stages_per_rank: interleaved stages need a multiple of pp = 2 micro-batches, but "
            "train.global_batch / dp / train.micro_batch = 6 / 2 / 1 = 3: change the batch or the mesh, or use one "
            "stage a rank");
}

TEST(PipelineChoice, KeysThatFitNoPipelineAreRefusedWithoutPp) {
  const MeshLayout flat = pipelined(1, 2);
  EXPECT_EQ(refusal(staged(recipe_of(8), {"auto", 1, {4, 5}}), flat),
            "parallel.pipeline.layers: add up to 9, but the model has 8 layers: give each layer to one stage");
  EXPECT_EQ(refusal(staged(recipe_of(8), {"zb_h1", 2, {}}), flat),
            "parallel.pipeline.schedule: zb_h1 has one stage on each rank, but parallel.pipeline.stages_per_rank is 2: "
            "use interleaved, or leave that key out");
  EXPECT_EQ(refusal(staged(recipe_of(8), {"interleaved", 1, {}}), flat),
            "parallel.pipeline.schedule: interleaved needs several stages on each rank: set "
            "parallel.pipeline.stages_per_rank to 2 or more, or use 1f1b");
  EXPECT_EQ(refusal(staged(recipe_of(8), {"auto", 5, {}}), flat),
            "parallel.pipeline.stages_per_rank: 5 makes 10 stages with pp=2, but the model has only 8 layers: use "
            "fewer");
  EXPECT_NO_THROW(resolve(staged(recipe_of(8), {"interleaved", 4, {1, 1, 1, 1, 1, 1, 1, 1}}), flat));
  Recipe recipe = staged(recipe_of(8), {"auto", 1, {4, 5}});
  recipe.locations = {{"", "r.yaml"}, {"parallel.pipeline.layers", "r.yaml:7:3: parallel.pipeline.layers"}};
  EXPECT_EQ(refusal(recipe, flat),
            "r.yaml:7:3: parallel.pipeline.layers: add up to 9, but the model has 8 layers: give each layer to one "
            "stage");
}

TEST(PipelineNotes, NameTheStagesTheBubbleAndWhenGradientsAreReduced) {
  const auto summary = [](const Recipe& recipe, const MeshLayout& layout) {
    return pipeline_summary(recipe, resolve(recipe, layout));
  };
  EXPECT_EQ(summary(recipe_of(8), pipelined(1, 2)), "");
  EXPECT_EQ(summary(recipe_of(8), pipelined(2)),
            "pipeline 1f1b: 2 stages with layers 0-3 and 4-7; 8 micro-batches a step, expected bubble 15 %");
  const Recipe uneven = staged(recipe_of(8), {"zb_h1", 1, {1, 7}});
  EXPECT_TRUE(
      summary(uneven, pipelined(2)).starts_with("pipeline zb_h1: 2 stages with layers 0 and 1-7; 8 micro-batches"))
      << summary(uneven, pipelined(2));
  EXPECT_TRUE(summary(recipe_of(8), pipelined(2, 2)).ends_with("; gradients are reduced once a step"));
  Recipe each = recipe_of(8);
  each.parallel.fsdp.mode = "shard_grad_op";
  EXPECT_TRUE(summary(each, pipelined(2, 2))
                  .ends_with("; gradients are reduced with each micro-batch (parallel.fsdp.no_sync: true reduces them "
                             "once a step)"));
}

TEST(PipelineNotes, WarnOfOneMicroBatchAndOfKeysWithoutEffect) {
  const auto warnings = [](const Recipe& recipe, const MeshLayout& layout) {
    return pipeline_warnings(recipe, resolve(recipe, layout));
  };
  using Warnings = std::vector<std::string>;
  EXPECT_EQ(warnings(recipe_of(8), pipelined(2)), Warnings{});
  EXPECT_EQ(warnings(recipe_of(8), pipelined(1, 2)), Warnings{});
  const Warnings one = warnings(recipe_of(8, 1), pipelined(4));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_TRUE(one[0].starts_with("a step has 1 micro-batch, so the ranks of the pipeline wait for 7")) << one[0];
  EXPECT_EQ(warnings(staged(recipe_of(8), {"1f1b", 1, {4, 4}}), pipelined(1, 2)),
            Warnings{"parallel.pipeline.schedule and parallel.pipeline.layers have no effect: mesh dp=2,cp=1,tp=1 has no "
                  "pp"});
  EXPECT_EQ(warnings(staged(recipe_of(8), {"auto", 2, {}}), pipelined(1, 2)),
            Warnings{"parallel.pipeline.stages_per_rank has no effect: mesh dp=2,cp=1,tp=1 has no pp"});
}

TEST(PipelineChoice, AutoReducesGradientsOnceAStep) {
  const Decisions decisions = resolve(recipe_of(8), pipelined(2, 2));
  EXPECT_EQ(decisions.sharding.mode, ShardingMode::ShardGradOp);
  EXPECT_TRUE(decisions.fsdp.accumulate_unsharded);
  EXPECT_EQ(resolve(recipe_of(8), pipelined(2, 2, 2)).sharding.mode, ShardingMode::NoShard);
  Recipe full = recipe_of(8);
  full.parallel.fsdp.mode = "full_shard";
  EXPECT_EQ(resolve(full, pipelined(2, 2)).sharding.mode, ShardingMode::FullShard);
  EXPECT_FALSE(resolve(full, pipelined(2, 2)).fsdp.accumulate_unsharded);
}

}  // namespace
}  // namespace meshtrain
