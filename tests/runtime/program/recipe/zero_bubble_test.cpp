// parallel.pipeline.schedule zb_h1: where it can run, and what a recipe has to say for it.
#include <gtest/gtest.h>

#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/pipeline.h"
#include "tests/runtime/program/recipe/fitting_recipe.h"
#include "tests/runtime/program/recipe/recipe_folder.h"

namespace meshtrain::testing {
namespace {

Recipe with_zero_bubble(const std::string& mode = "auto", bool no_sync = false) {
  Recipe recipe = fitting_recipe();
  recipe.parallel.pipeline.schedule = "zb_h1";
  recipe.parallel.fsdp.mode = mode;
  recipe.parallel.fsdp.options.accumulate_unsharded = no_sync;
  return recipe;
}

MeshLayout pipeline_mesh(int64_t dp) {
  return MeshLayout({{"pp", 2}, {"dp", dp}, {"cp", 1}, {"tp", 1}});
}

std::string pipeline_refusal(const Recipe& recipe, int64_t dp) {
  return input_error([&] { resolve(recipe, pipeline_mesh(dp)); });
}

TEST(ZeroBubble, RunsWhereGradientsHaveMemoryForAStep) {
  const MeshLayout mesh = pipeline_mesh(2);
  const Decisions decisions = resolve(with_zero_bubble(), mesh);
  EXPECT_EQ(decisions.pipeline.schedule, ScheduleKind::ZeroBubble);
  EXPECT_EQ(describe(decisions.pipeline), "zb_h1 over 2 stages of 1 layer, weight gradients deferred");
  for (const char* mode : {"no_shard", "shard_optimizer"})
    EXPECT_NO_THROW(resolve(with_zero_bubble(mode), mesh)) << mode;
  for (const char* mode : {"shard_grad_op", "full_shard"}) {
    EXPECT_NO_THROW(resolve(with_zero_bubble(mode, /*no_sync=*/true), mesh)) << mode;
    EXPECT_NO_THROW(resolve(with_zero_bubble(mode), pipeline_mesh(1))) << mode << " with nothing to cut";
    EXPECT_EQ(pipeline_refusal(with_zero_bubble(mode), 2),
              std::string("parallel.fsdp.no_sync: ") + mode +
                  " over dp, 2 ranks reduces gradients in the backward of each micro-batch, but zb_h1 computes some "
                  "later: set it to true, or use parallel.pipeline.schedule 1f1b");
  }
}

TEST(ZeroBubble, HasOneStageOnEachRank) {
  Recipe recipe = with_zero_bubble();
  recipe.model.shape.num_hidden_layers = 4;
  recipe.parallel.pipeline.stages_per_rank = 2;
  EXPECT_EQ(pipeline_refusal(recipe, 1),
            "parallel.pipeline.schedule: zb_h1 has one stage on each rank, but parallel.pipeline.stages_per_rank is 2: "
            "use interleaved, or leave that key out");
}

}  // namespace
}  // namespace meshtrain::testing
