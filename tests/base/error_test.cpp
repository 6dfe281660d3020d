#include "mesh/base/error.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

const KeyNames kNames = {{"evaluate.dtype", "--dtype"}, {"evaluate.tokens", "--tokens"}};

TEST(Wording, NamesKeysOrTheOptionsOfACommand) {
  const Wording text = "read /tmp/evaluate.dtype: set " + Setting{"evaluate.dtype", "uint16"} + ", or leave " +
                       Key{"evaluate.tokens"} + " and " + Key{"train.steps"} + " out";
  EXPECT_EQ(text.text(),
            "read /tmp/evaluate.dtype: set evaluate.dtype: uint16, or leave evaluate.tokens and train.steps out");
  EXPECT_EQ(text.text(kNames), "read /tmp/evaluate.dtype: set --dtype uint16, or leave --tokens and train.steps out")
      << "and not in the path";
  EXPECT_TRUE(Wording("").empty());
}

TEST(InputError, CarriesTheKeyThatItBeginsWith) {
  const InputError error("evaluate.tokens", "a.bin is empty: use another " + Key{"evaluate.dtype"});
  EXPECT_STREQ(error.what(), "evaluate.tokens: a.bin is empty: use another evaluate.dtype");
  EXPECT_EQ(error.key(), "evaluate.tokens");
  EXPECT_EQ(error.problem().text(), "a.bin is empty: use another evaluate.dtype");
  EXPECT_EQ(error.text(kNames), "--tokens: a.bin is empty: use another --dtype");
  const InputError other("there is no file");
  EXPECT_EQ(other.key(), "");
  EXPECT_EQ(other.text(kNames), "there is no file");
}

}  // namespace
}  // namespace meshtrain
