#include "runtime/program/yaml/known_keys.h"

#include <gtest/gtest.h>

#include "runtime/program/yaml/flat_keys.h"
#include "runtime/program/yaml/value.h"
#include "tests/runtime/program/yaml/yaml_text.h"

namespace meshtrain::testing {
namespace {

class KnownKeysTest : public ::testing::Test {
 protected:
  using Kind = ForeignAnswer::Kind;

  static KnownKey key(const std::string& path, const std::string& kind = "a whole number",
                      const std::string& shorthand = "") {
    return {path, kind, {}, shorthand};
  }

  const KnownKeys keys_{
      {key("train", "a map of keys"), key("train.steps"), key("train.seed"),
       key("train.memory", "a map of keys", "mode"), key("train.memory.mode", "a word"), key("data", "a map of keys"),
       key("data.mixture", "a list of maps of keys"), key("data.mixture.weight"), key("data.seed")},
      {{"train.iters", {Kind::Name, "train.steps"}},
       {"training", {Kind::Name, "train"}},
       {"train.max_time", {Kind::Sentence, "a run ends by itself"}},
       {"out", {Kind::Option, "--run-dir"}},
       {"memory=high", {Kind::Name, "low"}},
       {"train.memory=none", {Kind::Sentence, "memory is always used"}}}};
};

TEST_F(KnownKeysTest, AreFoundWhateverTheEntryOfTheirList) {
  ASSERT_NE(keys_.find("data.mixture[12].weight"), nullptr);
  EXPECT_EQ(keys_.find("data.mixture[12].weight")->path, "data.mixture.weight");
  EXPECT_TRUE(keys_.has("data.mixture[0]", "weight"));
  EXPECT_FALSE(keys_.has("data.mixture[0]", "seed"));
  EXPECT_FALSE(keys_.has("", "train.steps")) << "a path with a dot is not one key";
  EXPECT_EQ(keys_.find("data.mixture[0"), nullptr);
}

TEST_F(KnownKeysTest, APathIsCompletedWhenOneKeyEndsWithIt) {
  EXPECT_EQ(keys_.complete("steps"), "train.steps");
  EXPECT_EQ(keys_.complete("memory.mode"), "train.memory.mode");
  EXPECT_EQ(keys_.complete("mixture[3].weight"), "data.mixture[3].weight");
  EXPECT_EQ(keys_.complete("seed"), "seed") << "two keys end with seed";
  EXPECT_EQ(keys_.complete("train.mode"), "train.mode") << "its first word is a key";
  EXPECT_EQ(keys_.complete("zebra"), "zebra");
}

TEST_F(KnownKeysTest, ForeignWordsComeBeforeMisspellingsAndTheseBeforeOtherMaps) {
  EXPECT_EQ(keys_.suggestion("train", "iters"), "; here it is train.steps");
  EXPECT_EQ(keys_.suggestion("train", "Max-Time"), "; here a run ends by itself") << "case and dashes do not matter";
  EXPECT_EQ(keys_.suggestion("train", "stpes"), "; did you mean \"steps\"?");
  EXPECT_EQ(keys_.suggestion("data", "steps"), "; did you mean \"train.steps\"?");
  EXPECT_EQ(keys_.suggestion("train", "out"), "; here it is an option: --run-dir") << "this word is known in every map";
  EXPECT_EQ(keys_.suggestion("train", "zebra"), "");
}

TEST_F(KnownKeysTest, KeysOfAForeignMapAreThoseOfOurs) {
  EXPECT_EQ(keys_.foreign_word("training", "seed").text, "train.seed");
  EXPECT_EQ(keys_.foreign_word("training", "iters").text, "train.steps");
  EXPECT_FALSE(keys_.foreign_word("data", "iters"));
}

TEST_F(KnownKeysTest, AValueIsAnsweredByItsKeyBeforeItsName) {
  EXPECT_EQ(keys_.foreign_value("train.memory", "HIGH").text, "low");
  EXPECT_EQ(keys_.foreign_value("train.memory", "none").text, "memory is always used");
  EXPECT_FALSE(keys_.foreign_value("train.seed", "high"));
}

TEST_F(KnownKeysTest, AShorthandBecomesTheMapOfItsKey) {
  YamlValue root = yaml("train: {memory: full, steps: 3}");
  keys_.expand_shorthands(root);
  EXPECT_EQ(flat_text(root), "{train: {memory: {mode: full}, steps: 3}}");
  EXPECT_EQ(root.find("train")->find("memory")->location.text(), "r.yaml:1:17");
  YamlValue other = yaml("data: 3");
  keys_.expand_shorthands(other);
  EXPECT_EQ(flat_text(other), "{data: 3}") << "a map without a shorthand";
}

}  // namespace
}  // namespace meshtrain::testing
