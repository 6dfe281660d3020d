#include "runtime/program/yaml/suggest.h"

#include <gtest/gtest.h>

namespace meshtrain::testing {
namespace {

TEST(Suggestions, FindTheNearest) {
  const std::vector<std::string> words = {"steps", "seed", "precision"};
  EXPECT_EQ(nearest("stpes", words), "steps");
  EXPECT_EQ(nearest("step", words), "steps");
  EXPECT_EQ(nearest("precission", words), "precision");
  EXPECT_EQ(nearest("STEPS", words), "steps");
  EXPECT_EQ(nearest("weights", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest(std::string(1000, 's'), words), "");
}

TEST(Suggestions, TakeTheOneWithFewerChanges) {
  EXPECT_EQ(nearest("warmup_step", {"warmup_stop", "warmup_steps"}), "warmup_stop")
      << "the first of two with equal changes";
  EXPECT_EQ(nearest("warmup_step", {"warmup_stops", "warmup_steps"}), "warmup_steps");
  EXPECT_EQ(nearest("ab", {"ba"}), "ba") << "swapping two letters is one change";
  EXPECT_EQ(nearest("ab", {"cd"}), "") << "two changes are too many for so short a word";
}

}  // namespace
}  // namespace meshtrain::testing
