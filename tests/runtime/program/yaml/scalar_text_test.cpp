#include "runtime/program/yaml/scalar_text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "tests/runtime/program/yaml/yaml_text.h"

namespace meshtrain::testing {
namespace {

TEST(ScalarText, ATextIsReadBackUnchanged) {
  for (const std::string text : {"llama", "/data/a.bin", "a-b_c.d/e", "",     "no",   "Null", "y",    "OFF",
                                 "1e3",   "-1",          ".5",        "a: b", "a #b", "[a]",  "it's", "say \"x\"",
                                 "a\\b",  "tab\there",   "line\nend", "*x",   "!tag", "é",    " a ",  "\x7f"}) {
    const YamlValue read = yaml("key: " + scalar_text(text) + "\nnext: 1\n");
    ASSERT_NE(read.find("key"), nullptr) << text;
    EXPECT_EQ(read.find("key")->kind, YamlValue::Kind::Scalar) << text;
    EXPECT_EQ(read.find("key")->text, text);
  }
  EXPECT_EQ(scalar_text(std::string("/data/a-1.bin")), "/data/a-1.bin");
  EXPECT_EQ(scalar_text(std::string("on")), "\"on\"") << "without quotes YAML 1.1 reads a flag";
}

TEST(ScalarText, ANumberIsReadBackToTheLastBit) {
  using Limits = std::numeric_limits<double>;
  for (const double value :
       {0.1, 1.0 / 3, 1e-8, 1e15, 999999999999999.0, 1e22, -0.0, Limits::min(), Limits::denorm_min(), Limits::max()}) {
    const double read = std::strtod(scalar_text(value).c_str(), nullptr);
    EXPECT_EQ(read, value) << scalar_text(value);
    EXPECT_EQ(std::signbit(read), std::signbit(value)) << scalar_text(value);
  }
  EXPECT_EQ(scalar_text(100000.0), "100000") << "people read it more easily without an exponent";
  EXPECT_EQ(scalar_text(1e-3), "0.001");
}

TEST(ScalarText, NoValueIsNullAndAFreeSizeIsAuto) {
  EXPECT_EQ(scalar_text(std::filesystem::path()), "null");
  EXPECT_EQ(scalar_text(std::optional<int64_t>()), "null");
  EXPECT_EQ(scalar_text(std::map<std::string, int64_t>{{"dp", -1}, {"tp", 2}}), "{dp: auto, tp: 2}");
  EXPECT_EQ(scalar_text(std::vector<std::string>{"*.0.*", "a"}), "[\"*.0.*\", a]");
}

}  // namespace
}  // namespace meshtrain::testing
