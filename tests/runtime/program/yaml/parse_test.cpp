#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "runtime/program/yaml/flat_keys.h"
#include "runtime/program/yaml/value.h"
#include "tests/runtime/program/yaml/yaml_text.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

class ParseYaml : public ::testing::Test {
 protected:
  static std::string parse_refusal(const std::string& text) {
    return message<InputError>([&] { yaml(text); });
  }
};

TEST_F(ParseYaml, KeepsScalarsAsTextsAndWhetherTheyWereQuoted) {
  const YamlValue root = yaml("a: 0x10\nb: '1'\nc: !!str 1\nd: ~\ne: \"\"\n");
  EXPECT_EQ(root.find("a")->text, "0x10");
  EXPECT_FALSE(root.find("a")->quoted);
  EXPECT_TRUE(root.find("b")->quoted && root.find("c")->quoted);
  EXPECT_EQ(root.find("d")->kind, YamlValue::Kind::Null);
  EXPECT_EQ(root.find("e")->kind, YamlValue::Kind::Scalar) << "an empty string is not null";
}

TEST_F(ParseYaml, ValuesAndAliasesHaveTheirOwnLocations) {
  const YamlValue root = yaml("a: &x\n  b: [1, y]\nc: *x\n");
  EXPECT_EQ(root.find("a")->find("b")->items.at(1).location.text(), "r.yaml:2:10");
  EXPECT_EQ(flat_text(*root.find("c")), "{b: [1, y]}");
  EXPECT_EQ(root.find("c")->location.text(), "r.yaml:3:4") << "the location of the alias";
}

TEST_F(ParseYaml, AnEmptyTextIsNullWithALocation) {
  EXPECT_EQ(yaml("").kind, YamlValue::Kind::Null);
  EXPECT_EQ(yaml("").location.text(), "r.yaml");
}

TEST_F(ParseYaml, RefusesTheFirstListThatIsTooDeep) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(parse_refusal(nested(32)), "");
  EXPECT_EQ(parse_refusal(nested(33)), "r.yaml:1:33: nested too deeply for a recipe");
}

TEST_F(ParseYaml, NamesTheKeyThatAppearsTwiceByItsPath) {
  EXPECT_EQ(parse_refusal("a:\n  b: {c: 1, c: 2}\n"), "r.yaml:2:13: a.b.c: appears twice, first in line 2: remove one");
  EXPECT_EQ(parse_refusal("a: [{c: 1}, {c: 2}]\n"), "") << "the keys are in two maps";
}

TEST_F(ParseYaml, TakesTagsOfTheValuesOwnKindOnly) {
  EXPECT_EQ(parse_refusal("a: !!int 1\nb: !!seq [1]\nc: !!map {d: 1}\n"), "");
  EXPECT_EQ(parse_refusal("a: !!map [1]\n"),
            "r.yaml:1:4: the tag \"tag:yaml.org,2002:map\" is not supported: remove it");
}

}  // namespace
}  // namespace meshtrain::testing
