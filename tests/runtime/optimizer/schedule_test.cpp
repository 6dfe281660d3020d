#include "runtime/optimizer/schedule.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

ScheduleRecipe schedule(const std::string& name, int64_t warmup, int64_t decay = 0, double min_ratio = 0) {
  return {name, warmup, decay, min_ratio};
}

TEST(Schedule, WarmsUpLinearlyToThePeak) {
  for (const char* name : {"constant", "cosine", "linear", "wsd"}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 4), 1, 1, 100), 0.25) << name;
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 4), 1, 4, 100), 1) << name;
  }
}

TEST(Schedule, EndsAtItsMinimumInTheLastStep) {
  for (const char* name : {"cosine", "linear"}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 10, 0, 0.1), 2, 110, 110), 0.2) << name;
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 10, 0, 0.1), 2, 60, 110), 1.1) << name << ", half way";
  }
  EXPECT_DOUBLE_EQ(learning_rate(schedule("wsd", 10, 20, 0), 1, 100, 100), 0);
}

TEST(Schedule, StaysBeforeWsdDecays) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule("wsd", 10, 20), 1, 80, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(schedule("wsd", 10, 20), 1, 90, 100), 0.5);
}

TEST(Schedule, ConstantStays) {
  EXPECT_DOUBLE_EQ(learning_rate(schedule("constant", 0), 3e-4, 999, 1000), 3e-4);
}

}  // namespace
}  // namespace meshtrain
