#include "runtime/training/trainer/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mesh/agree.h"
#include "runtime/program/run/skipped_steps.h"

namespace meshtrain {
namespace {

TEST(LossScale, IsOneWithoutARecipe) {
  LossScale scale;
  scale.update(false);
  scale.update(true);
  EXPECT_EQ(scale.value(), 1);
}

TEST(LossScale, BacksOffAfterEachOverflowDownToItsLeast) {
  LossScale scale({.initial = 16, .backoff_factor = 0.25, .min = 2});
  EXPECT_EQ(scale.value(), 16);
  scale.update(false);
  EXPECT_EQ(scale.value(), 4);
  scale.update(false);
  EXPECT_EQ(scale.value(), 2);
  scale.update(false);
  EXPECT_EQ(scale.value(), 2);
}

TEST(LossScale, GrowsAfterSoManyFiniteStepsInARow) {
  LossScale scale({.initial = 8, .growth_interval = 3, .growth_factor = 2});
  for (const bool finite : {true, true, false, true, true}) scale.update(finite);
  EXPECT_EQ(scale.value(), 4) << "two in a row, twice";
  scale.update(true);
  EXPECT_EQ(scale.value(), 8);
  scale.update(true);
  scale.update(true);
  EXPECT_EQ(scale.value(), 8) << "the count begins anew";
}

TEST(LossScale, NeverGrowsBeyondWhatABackwardCanStartFrom) {
  LossScale scale({.initial = 1e38, .growth_interval = 1, .growth_factor = 3});
  scale.update(true);
  scale.update(true);
  EXPECT_LE(scale.value(), std::numeric_limits<float>::max());
  EXPECT_GT(scale.value(), 1e38);
}

TEST(LossScale, StaysWhenItIsStatic) {
  LossScale scale({.fixed = 128, .growth_interval = 1});
  scale.update(true);
  scale.update(false);
  EXPECT_EQ(scale.value(), 128);
}

// A run that is resumed with a smaller interval has perhaps counted more steps already.
TEST(LossScale, GrowsAlsoWhenMoreStepsThanTheIntervalAreCounted) {
  LossScale scale({.initial = 8, .growth_interval = 3, .growth_factor = 2});
  scale.resume({8, 5});
  scale.update(true);
  EXPECT_EQ(scale.value(), 16);
  EXPECT_EQ(scale.state()->num_finite, 0);
}

TEST(LossScale, GoesOnFromItsStateWithTheStepsThatItHasCounted) {
  const LossScaleOptions recipe{.initial = 8, .growth_interval = 3, .growth_factor = 2};
  LossScale before(recipe), after(recipe);
  for (const bool finite : {false, true, true}) before.update(finite);
  after.resume(before.state().value());
  EXPECT_EQ(after.value(), 4);
  after.update(true);
  EXPECT_EQ(after.value(), 8) << "the third in a row";
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TrainRecipe recipe(const std::string& precision, const std::string& policy, int64_t max_skipped) {
  TrainRecipe train;
  train.precision = precision;
  train.non_finite = policy;
  train.max_skipped = max_skipped;
  return train;
}

StepMetrics step(int64_t number, double loss, double grad_norm, const std::string& parameter = "") {
  StepMetrics metrics{number, loss, grad_norm};
  metrics.skipped = !std::isfinite(loss + grad_norm);
  metrics.non_finite = parameter;
  return metrics;
}

std::string end_of(SkippedSteps& skipped, const StepMetrics& metrics) {
  try {
    skipped.judge(metrics);
  } catch (const AgreedError& error) {
    return error.what();
  }
  return "";
}

TEST(SkippedSteps, StopAtTheFirstUnlessAsked) {
  SkippedSteps skipped(recipe("fp32", "stop", 25), /*scales_loss=*/false);
  EXPECT_EQ(end_of(skipped, step(1, 2, 1)), "");
  EXPECT_EQ(end_of(skipped, step(2, 2, kInfinity, "w")),
            "step 2: loss 2.000000, gradient norm inf; the first gradient that is not finite is that of w; lower "
            "optimizer.learning_rate or lengthen schedule.warmup_steps, or skip such steps with "
            "train.non_finite: skip");
}

TEST(SkippedSteps, GoOnUntilThereAreTooManyInARow) {
  SkippedSteps skipped(recipe("fp32", "skip", 2), /*scales_loss=*/false);
  EXPECT_EQ(end_of(skipped, step(1, kInfinity, kInfinity)), "");
  EXPECT_EQ(end_of(skipped, step(2, 2, 1)), "");
  EXPECT_EQ(end_of(skipped, step(3, 2, kInfinity)), "");
  EXPECT_EQ(end_of(skipped, step(4, 2, kInfinity)),
            "step 4: loss 2.000000, gradient norm inf; every gradient is finite by itself; 2 steps in a row were "
            "skipped, as many as train.max_skipped allows: lower optimizer.learning_rate or lengthen "
            "schedule.warmup_steps");
}

TEST(SkippedSteps, ARunOfNothingElseHasTrainedNothing) {
  const auto end = [](const SkippedSteps& skipped) -> std::string {
    try {
      skipped.finish();
    } catch (const AgreedError& error) {
      return error.what();
    }
    return "";
  };
  SkippedSteps skipped(recipe("fp32", "skip", 25), /*scales_loss=*/false);
  for (int64_t number = 1; number <= 2; ++number) EXPECT_EQ(end_of(skipped, step(number, 2, kInfinity)), "");
  EXPECT_TRUE(end(skipped).starts_with("every one of the 2 steps was skipped")) << end(skipped);
  EXPECT_EQ(end_of(skipped, step(3, 2, 1)), "");
  EXPECT_EQ(end(skipped), "");
  EXPECT_EQ(end(SkippedSteps(recipe("fp32", "skip", 25), /*scales_loss=*/false)), "");
  EXPECT_EQ(end(SkippedSteps(recipe("fp32", "skip", 25), /*scales_loss=*/false, /*steps_made=*/7, /*in_a_row=*/3)), "")
      << "resumed";
  EXPECT_NE(end(SkippedSteps(recipe("fp32", "skip", 25), /*scales_loss=*/false, /*steps_made=*/3, /*in_a_row=*/3)), "");
}

TEST(SkippedSteps, OverflowOfScaledGradientsIsNoReasonToStopButALossIs) {
  SkippedSteps skipped(recipe("fp16_mixed", "stop", 2), /*scales_loss=*/true);
  StepMetrics overflow = step(1, 2, kInfinity, "w");
  overflow.loss_scale = 4;
  EXPECT_EQ(end_of(skipped, overflow), "");
  EXPECT_TRUE(end_of(skipped, overflow)
                  .ends_with("train.max_skipped allows, with a final loss scale of 4: lower train.loss_scale.initial, "
                             "or lower optimizer.learning_rate or lengthen schedule.warmup_steps"));
  SkippedSteps fresh(recipe("fp16_mixed", "stop", 2), /*scales_loss=*/true);
  EXPECT_NE(end_of(fresh, step(1, kInfinity, kInfinity, "w")), "");
  SkippedSteps patient(recipe("fp16_mixed", "skip", 2), /*scales_loss=*/true);
  EXPECT_EQ(end_of(patient, step(1, kInfinity, kInfinity, "w")), "");
}

}  // namespace
}  // namespace meshtrain
