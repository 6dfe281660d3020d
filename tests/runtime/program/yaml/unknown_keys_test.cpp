#include "runtime/program/yaml/unknown_keys.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "runtime/program/yaml/known_keys.h"
#include "tests/runtime/program/yaml/yaml_text.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

class UnknownKeys : public ::testing::Test {
 protected:
  using Kind = ForeignAnswer::Kind;

  std::string unknown_in(const std::string& text) const {
    return message<InputError>([&] { refuse_unknown_keys(yaml(text), keys_); });
  }

  const KnownKeys keys_{{{"mesh", "a map of sizes", {}, ""},
                         {"mesh.dp", "a whole number", {}, ""},
                         {"train", "a map of keys", {}, ""},
                         {"train.steps", "a whole number", {}, ""},
                         {"mixture", "a list of maps of keys", {}, ""},
                         {"mixture.weight", "a number", {}, ""}},
                        {{"mesh.pp", {Kind::Sentence, "there are no stages"}},
                         {"training", {Kind::Name, "train"}},
                         {"training.lr", {Kind::Name, "rate"}}}};
};

TEST_F(UnknownKeys, AreFoundInMapsAndInEntriesOfLists) {
  EXPECT_EQ(unknown_in("mesh: {dp: 2}\ntrain: {steps: 3}\nmixture: [{weight: 1}]\n"), "");
  EXPECT_EQ(unknown_in("train: {stpes: 3}"), "r.yaml:1:9: train.stpes: unknown key; did you mean \"steps\"?");
  EXPECT_EQ(unknown_in("mixture: [{weight: 1}, {wieght: 1}]"),
            "r.yaml:1:25: mixture[1].wieght: unknown key; did you mean \"weight\"?");
  EXPECT_EQ(unknown_in("train: {steps: {a: 1}}"), "") << "the reader reports a map where a number is needed";
}

TEST_F(UnknownKeys, AnAxisIsNamedOnlyWhereItIsAForeignWord) {
  EXPECT_EQ(unknown_in("mesh: {pp: 2}"), "r.yaml:1:8: mesh.pp: unknown key; here there are no stages");
  EXPECT_EQ(unknown_in("mesh: {zp: 2}"), "") << "the reader lists the axes";
}

TEST_F(UnknownKeys, AForeignMapIsAnsweredKeyByKeyAndNamedWhereAKeyHasNoAnswer) {
  EXPECT_EQ(unknown_in("training: {lr: 1}"), "r.yaml:1:12: training.lr: unknown key; here it is rate");
  EXPECT_EQ(unknown_in("training: {lr: 1, zebra: 2}"),
            "2 unknown keys:\n  r.yaml:1:1: training: here it is train\n  r.yaml:1:12: training.lr: here it is rate");
  EXPECT_EQ(unknown_in("trian: {zebra: 1, lion: 2}"), "r.yaml:1:1: trian: unknown key; did you mean \"train\"?")
      << "a misspelt map counts as one unknown key";
}

TEST_F(UnknownKeys, TheKeyOfAnOptionIsNotRepeated) {
  auto source = std::make_shared<YamlSource>();
  source->name = "--set train.stpes=3";
  source->is_file = false;
  source->option_key = "train.stpes";
  const YamlValue root = parse_yaml("train: {stpes: 3}", source);
  EXPECT_EQ(message<InputError>([&] { refuse_unknown_keys(root, keys_); }),
            "--set train.stpes=3: unknown key; did you mean \"steps\"?");
}

}  // namespace
}  // namespace meshtrain::testing
