#include "runtime/program/yaml/flat_keys.h"

#include <gtest/gtest.h>

#include "tests/runtime/program/yaml/yaml_text.h"

namespace meshtrain::testing {
namespace {

TEST(FlatKeys, HaveTheOrderOfTheTextAndListsAsOneValue) {
  EXPECT_EQ(flat_keys(yaml("b: {z: 1, a: ~}\na: [0.9, {to: disk}]\nempty: {}\n")),
            (FlatKeys{{"b.z", "1"}, {"b.a", "none"}, {"a", "[0.9, {to: disk}]"}}))
      << "a map without keys has no values";
}

TEST(FlatKeys, TheOpenedListGivesTheKeysOfItsItems) {
  const YamlValue document = yaml("data: {mixture: [{tokens: a, weight: 1}, {tokens: b}], other: [{c: 1}]}");
  EXPECT_EQ(flat_keys(document, "data.mixture"), (FlatKeys{{"data.mixture[0].tokens", "a"},
                                                           {"data.mixture[0].weight", "1"},
                                                           {"data.mixture[1].tokens", "b"},
                                                           {"data.other", "[{c: 1}]"}}));
}

}  // namespace
}  // namespace meshtrain::testing
