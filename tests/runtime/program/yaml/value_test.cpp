#include "runtime/program/yaml/value.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "runtime/program/yaml/flat_keys.h"
#include "tests/runtime/program/yaml/yaml_text.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

class MergeYaml : public ::testing::Test {
 protected:
  static std::string merged(const std::string& base, const std::string& over) {
    YamlValue value = yaml(base);
    merge_yaml(value, yaml(over));
    return flat_text(value);
  }
  static std::string merge_refusal(const std::string& base, const std::string& over) {
    return message<InputError>([&] { merged(base, over); });
  }
};

TEST_F(MergeYaml, MapsMergeKeyByKeyAndOtherValuesReplace) {
  EXPECT_EQ(merged("a: {x: 1, y: 2}\nb: [1, 2]", "a: {y: 3, z: 4}\nb: [5]\nc: 6"),
            "{a: {x: 1, y: 3, z: 4}, b: [5], c: 6}");
  EXPECT_EQ(merged("a: {x: 1}", "a: null"), "{a: none}") << "null replaces too";
  EXPECT_EQ(merged("a: 1", "a: {x: 1}"), "{a: {x: 1}}");
}

TEST_F(MergeYaml, NumbersAsKeysNameItemsOfAList) {
  const std::string list = "m: [{w: 1, t: a}, {w: 2}]";
  EXPECT_EQ(merged(list, "m: {1: {w: 3, t: b}, 0: {w: 4}}"), "{m: [{w: 4, t: a}, {w: 3, t: b}]}");
  EXPECT_EQ(merged(list, "m: {1: {w: 3}, a: 1}"), "{m: {1: {w: 3}, a: 1}}") << "another key makes it a map";
  EXPECT_EQ(merged(list, "m: {}"), "{m: {}}");
  EXPECT_EQ(merge_refusal(list, "m: {2: {w: 3}}"), "r.yaml:1:5: there is no entry 2: the list has 2, entries 0 to 1");
  EXPECT_EQ(merge_refusal("m: [1]", "m: {1: 3}"), "r.yaml:1:5: there is no entry 1: the list has one, entry 0");
  EXPECT_EQ(merge_refusal("m: []", "m: {0: 3}"), "r.yaml:1:5: there is no entry 0: the list has none");
}

TEST(YamlLocation, NamesAFileWithLineAndColumnAndAnOptionAlone) {
  YamlLocation location = yaml("a: {b: 1}").find("a")->find("b")->location;
  EXPECT_EQ(location.text(), "r.yaml:1:8");
  location.line = 0;
  EXPECT_EQ(location.text(), "r.yaml");
  YamlSource option;
  option.name = "--set a=1";
  option.is_file = false;
  EXPECT_EQ((YamlLocation{std::make_shared<YamlSource>(option), 1, 1}).text(), "--set a=1");
}

TEST(YamlText, IsQuotedOnOneLineAndCut) {
  EXPECT_EQ(quoted("a\nb\x7f"), "\"a\\x0ab\\x7f\"");
  EXPECT_EQ(quoted(std::string(80, 'x')), '"' + std::string(80, 'x') + '"');
  EXPECT_EQ(quoted(std::string(81, 'x')), '"' + std::string(80, 'x') + "...\"");
  EXPECT_TRUE(has_control_characters("a\tb"));
  EXPECT_FALSE(has_control_characters("é b"));
}

}  // namespace
}  // namespace meshtrain::testing
