#include "runtime/program/report/value_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace meshtrain {
namespace {

TEST(Numbers, AreWrittenShort) {
  EXPECT_EQ(text_of(0), "0");
  EXPECT_EQ(text_of(1.23456), "1.23");
  EXPECT_EQ(text_of(0.000012345), "1.23e-05");
  EXPECT_EQ(text_of(7608.4), "7608");
  EXPECT_EQ(text_of(12345), "12.3k");
  EXPECT_EQ(text_of(2048000), "2.05M");
  EXPECT_EQ(text_of(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(text_of(700.0 * (1 << 20), ValueUnit::Bytes), "700 MiB");
  EXPECT_EQ(text_of(512, ValueUnit::Bytes), "512 B");
  EXPECT_EQ(text_of(0.382, ValueUnit::Percent), "38.2 %");
  EXPECT_EQ(text_of(0.0035, ValueUnit::Seconds), "3.5 ms");
  EXPECT_EQ(text_of(7265, ValueUnit::Seconds), "2:01:05");
  EXPECT_EQ(text_of(3.2e13, ValueUnit::Flops), "32 TFLOP/s");
  EXPECT_EQ(text_of(1e300, ValueUnit::Seconds), "1e+300 s");
}

}  // namespace
}  // namespace meshtrain
