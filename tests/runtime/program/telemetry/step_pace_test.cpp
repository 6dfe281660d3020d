#include "runtime/program/telemetry/step_pace.h"

#include <gtest/gtest.h>

namespace meshtrain::testing {
namespace {

TEST(StepPace, IsTheMedianOfTheLastSteps) {
  StepPace pace;
  EXPECT_EQ(pace.seconds(), 0);
  pace.add(9);  // the first step warms up
  EXPECT_EQ(pace.seconds(), 9);
  pace.add(2);
  EXPECT_EQ(pace.seconds(), 2);
  for (int i = 0; i < 10; ++i) pace.add(2);
  pace.add(600);  // a step that waited for a rank that stood still
  EXPECT_EQ(pace.seconds(), 2);
  for (int i = 0; i < 31; ++i) pace.add(5);
  EXPECT_EQ(pace.seconds(), 5) << "earlier steps count no more";
}

}  // namespace
}  // namespace meshtrain::testing
