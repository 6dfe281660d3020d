#include "runtime/telemetry/progress.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(ProgressTest, ALineEveryFewSeconds) {
  Progress progress(98765);
  EXPECT_EQ(progress.line(0, 6), "") << "a rate is not known";
  EXPECT_EQ(progress.line(1000, 4.9), "");
  EXPECT_EQ(progress.line(12345, 10), "12,345 of 98,765 tokens, 1,235 tok/s, eta 1:10");
  EXPECT_EQ(progress.line(13000, 14.9), "") << "the last line is younger";
  EXPECT_EQ(progress.line(20000, 16), "20,000 of 98,765 tokens, 1,250 tok/s, eta 1:03");
  EXPECT_EQ(progress.line(98765, 60), "") << "the result is the next line";
}

}  // namespace
}  // namespace meshtrain
