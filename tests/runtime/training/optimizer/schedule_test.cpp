#include "runtime/training/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace meshtrain {
namespace {

ScheduleOptions schedule(Schedule name, int64_t warmup, int64_t decay = 0, double min_ratio = 0) {
  return {.name = name, .warmup_steps = warmup, .decay_steps = decay, .min_ratio = min_ratio};
}

TEST(Schedule, WarmsUpLinearlyToThePeak) {
  for (const Schedule name : {Schedule::Constant, Schedule::Cosine, Schedule::Linear, Schedule::Wsd}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 4), 1, 1, 100), 0.25) << static_cast<int>(name);
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 4), 1, 4, 100), 1) << static_cast<int>(name);
  }
}

TEST(Schedule, WouldReachItsMinimumOneStepAfterTheLast) {
  for (const Schedule name : {Schedule::Cosine, Schedule::Linear}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 10, 0, 0.1), 2, 111, 110), 0.2) << static_cast<int>(name);
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 10, 0, 0.1), 2, 61, 110), 1.1)
        << static_cast<int>(name) << ", half way";
  }
  EXPECT_DOUBLE_EQ(learning_rate(schedule(Schedule::Wsd, 10, 20, 0), 1, 101, 100), 0);
}

TEST(Schedule, StaysBeforeWsdDecays) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(Schedule::Wsd, 10, 20), 1, 81, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule(Schedule::Wsd, 10, 20), 1, 91, 100), 0.5);
}

// The values of torchtitan's formula for 20 steps, 4 of warm-up, wsd with a decay of 8; after the warm-up transformers
// 5.23 has the same.
TEST(Schedule, IsTorchtitans) {
  struct Expected {
    Schedule name;
    std::vector<double> first, last;
  };
  const std::vector<double> first = {0.25, 0.5, 0.75, 1, 1};
  for (const Expected& expected : {Expected{Schedule::Cosine, first, {0.222215, 0.146447, 0.084265, 0.03806, 0.009607}},
                                   Expected{Schedule::Linear, first, {0.3125, 0.25, 0.1875, 0.125, 0.0625}},
                                   Expected{Schedule::Wsd, first, {0.625, 0.5, 0.375, 0.25, 0.125}}}) {
    const ScheduleOptions recipe = schedule(expected.name, 4, 8);
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(learning_rate(recipe, 1, 1 + i, 20), expected.first[i], 1e-6)
          << static_cast<int>(expected.name) << " " << 1 + i;
      EXPECT_NEAR(learning_rate(recipe, 1, 16 + i, 20), expected.last[i], 1e-6)
          << static_cast<int>(expected.name) << " " << 16 + i;
    }
  }
}

TEST(Schedule, HasNoStepWithoutALearningRate) {
  for (const Schedule name : {Schedule::Constant, Schedule::Cosine, Schedule::Linear, Schedule::Wsd}) {
    for (const int64_t num_steps : {1, 2, 3, 100}) {
      for (int64_t warmup = 0; warmup < std::min<int64_t>(num_steps, 3); ++warmup) {
        for (int64_t step = 1; step <= num_steps; ++step) {
          EXPECT_GT(learning_rate(schedule(name, warmup, 1), 1, step, num_steps), 0)
              << static_cast<int>(name) << " step " << step << " of " << num_steps << ", warm-up " << warmup;
        }
      }
    }
  }
}

TEST(Schedule, ConstantStays) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule(Schedule::Constant, 0), 3e-4, 999, 1000), 3e-4);
}

// total_steps does not depend on the steps of the run: the rates are the same however long the run is. After
// total_steps the last rate stays.
TEST(Schedule, IsSpreadOverItsOwnSteps) {
  for (const Schedule name : {Schedule::Cosine, Schedule::Linear, Schedule::Wsd}) {
    ScheduleOptions own = schedule(name, 4, 8, 0.1);
    own.total_steps = 20;
    for (int64_t step = 1; step <= 20; ++step) {
      EXPECT_EQ(learning_rate(own, 1, step, 100), learning_rate(schedule(name, 4, 8, 0.1), 1, step, 20))
          << static_cast<int>(name);
    }
    EXPECT_DOUBLE_EQ(learning_rate(own, 1, 21, 100), 0.1) << static_cast<int>(name);
    EXPECT_DOUBLE_EQ(learning_rate(own, 1, 100, 100), 0.1) << static_cast<int>(name);
  }
}

}  // namespace
}  // namespace meshtrain
