#include "runtime/program/run/skipped_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mesh/agree.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

class SkippedStepsTest : public ::testing::Test {
 protected:
  static StepMetrics good(int64_t step) { return {.step = step, .loss = 2, .grad_norm = 1}; }
  static StepMetrics skipped(int64_t step, double loss = std::numeric_limits<double>::quiet_NaN()) {
    return {.step = step, .loss = loss, .grad_norm = INFINITY, .skipped = true, .non_finite = "model.norm.weight"};
  }
  static StepMetrics unlabelled(int64_t step) { return {.step = step, .skipped = true, .no_label = "sample 4 to 7"}; }

  static std::string judged(SkippedSteps& steps, const StepMetrics& metrics) {
    return message<AgreedError>([&] { steps.judge(metrics); });
  }

  TrainRecipe recipe_;
};

TEST_F(SkippedStepsTest, OneEndsARunThatDoesNotSkip) {
  SkippedSteps steps(recipe_, /*scales_loss=*/false);
  EXPECT_EQ(judged(steps, good(1)), "");
  EXPECT_EQ(judged(steps, skipped(2)),
            "step 2: loss nan, gradient norm inf; the first gradient that is not finite is that of model.norm.weight; "
            "lower optimizer.learning_rate or lengthen schedule.warmup_steps, or skip such steps with "
            "train.non_finite: skip");
}

TEST_F(SkippedStepsTest, OnlyOnesInARowEndARunThatSkips) {
  recipe_.non_finite = "skip";
  recipe_.max_skipped = 2;
  SkippedSteps steps(recipe_, /*scales_loss=*/false);
  for (int64_t step = 1; step < 9; step += 2) {
    EXPECT_EQ(judged(steps, skipped(step)), "");
    EXPECT_EQ(steps.in_a_row(), 1);
    EXPECT_EQ(judged(steps, good(step + 1)), "");
    EXPECT_EQ(steps.in_a_row(), 0);
  }
  EXPECT_EQ(judged(steps, skipped(9)), "");
  EXPECT_TRUE(has(judged(steps, skipped(10)), "; 2 steps in a row were skipped, as many as train.max_skipped allows"));
}

TEST_F(SkippedStepsTest, OnesBeforeACheckpointCount) {
  recipe_.non_finite = "skip";
  recipe_.max_skipped = 3;
  SkippedSteps steps(recipe_, /*scales_loss=*/false, /*steps_made=*/5, /*in_a_row=*/2);
  EXPECT_TRUE(has(judged(steps, skipped(6)), "; 3 steps in a row were skipped"));
}

TEST_F(SkippedStepsTest, AnOverflowOfScaledGradientsIsSkippedAndALossThatIsNotFiniteIsNot) {
  recipe_.max_skipped = 5;
  SkippedSteps steps(recipe_, /*scales_loss=*/true);
  EXPECT_EQ(judged(steps, skipped(1, /*loss=*/2.5)), "");
  EXPECT_TRUE(has(judged(steps, skipped(2)), "; lower train.loss_scale.initial, or lower optimizer.learning_rate"));
  recipe_.loss_scale.emplace().fixed = 8;
  SkippedSteps of_static(recipe_, /*scales_loss=*/true);
  EXPECT_TRUE(has(judged(of_static, skipped(1)), "; lower train.loss_scale.static, or"));
}

TEST_F(SkippedStepsTest, StepsWithoutALabelDoNotCountAmongThem) {
  SkippedSteps steps(recipe_, /*scales_loss=*/false);
  for (int64_t step = 1; step < 100; ++step) EXPECT_EQ(judged(steps, unlabelled(step)), "");
  EXPECT_EQ(steps.in_a_row(), 0);
  EXPECT_TRUE(has(message<AgreedError>([&] { steps.finish(); }), "no label of any of the 99 steps counted: "));
  EXPECT_EQ(judged(steps, good(100)), "");
  EXPECT_EQ(message<AgreedError>([&] { steps.finish(); }), "");
}

TEST_F(SkippedStepsTest, ARunThatHasTrainedNothingFails) {
  recipe_.non_finite = "skip";
  recipe_.max_skipped = 9;
  const auto end = [&](int64_t made, int64_t in_a_row, int64_t more) {
    SkippedSteps steps(recipe_, /*scales_loss=*/false, made, in_a_row);
    for (int64_t i = 0; i < more; ++i) steps.judge(skipped(made + i + 1));
    return message<AgreedError>([&] { steps.finish(); });
  };
  EXPECT_TRUE(has(end(0, 0, 2), "every one of the 2 steps was skipped"));
  EXPECT_TRUE(has(end(2, 2, 1), "every one of the 3 steps was skipped")) << "counts steps before the checkpoint too";
  EXPECT_EQ(end(3, 2, 1), "") << "a step before the checkpoint has trained";
  EXPECT_EQ(end(0, 0, 0), "") << "nothing was left to do";
}

}  // namespace
}  // namespace meshtrain::testing
