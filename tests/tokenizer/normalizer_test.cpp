#include "runtime/text/tokenizer/normalizer.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

class NormalizerTest : public ::testing::Test {
 protected:
  template <class... Steps>
  static Normalizer normalizer(Steps&&... steps) {
    std::vector<NormalizerStep> all;
    (all.emplace_back(std::forward<Steps>(steps)), ...);
    return Normalizer(std::move(all));
  }
};

TEST_F(NormalizerTest, TakesItsStepsInTheirOrder) {
  EXPECT_EQ(normalizer(PrependStep{"▁"}, ReplaceStep{Pattern::literal(" "), "▁"}).apply("a b"), "▁a▁b");
  EXPECT_EQ(normalizer(ReplaceStep{Pattern::literal(" "), "▁"}, StripStep{}).apply(" a "), "▁a▁");
  EXPECT_EQ(normalizer(StripStep{}, ReplaceStep{Pattern::literal(" "), "▁"}).apply(" a "), "a");
  EXPECT_EQ(normalizer(PrependStep{"▁"}).apply(""), "") << "an empty text stays empty";
}

TEST_F(NormalizerTest, StripsOnlyTheGivenSides) {
  EXPECT_EQ(normalizer(StripStep{.left = true, .right = false}).apply("\u2003 a "), "a ");
  EXPECT_EQ(normalizer(StripStep{.left = false, .right = true}).apply(" a\n\t"), " a");
  EXPECT_EQ(normalizer(StripStep{}).apply(" \n "), "");
}

TEST_F(NormalizerTest, ReplacesMatchesWithoutOverlaps) {
  EXPECT_EQ(normalizer(ReplaceStep{Pattern(" {2,}"), " "}).apply("a   b  c d"), "a b c d");
  EXPECT_EQ(normalizer(ReplaceStep{Pattern::literal("aa"), "a"}).apply("aaaaa"), "aaa");
}

TEST_F(NormalizerTest, KnowsWhatItSurelyKeeps) {
  EXPECT_TRUE(normalizer().surely_keeps("e\u0301"));
  EXPECT_TRUE(normalizer(FormStep{NormalForm::Nfc}).surely_keeps("plain é"));
  EXPECT_FALSE(normalizer(FormStep{NormalForm::Nfc}).surely_keeps("e\u0301"));
  EXPECT_FALSE(normalizer(FormStep{NormalForm::Nfc}, StripStep{}).surely_keeps("a")) << "spaces are not examined";
}

TEST_F(NormalizerTest, KnowsWhetherTheBeginningOfATextMayGo) {
  EXPECT_TRUE(normalizer(StripStep{.left = true, .right = false}).may_remove_beginning());
  EXPECT_TRUE(normalizer(ReplaceStep{Pattern::literal("x"), ""}).may_remove_beginning());
  EXPECT_FALSE(normalizer(StripStep{.left = false, .right = true}).may_remove_beginning());
  EXPECT_FALSE(normalizer(PrependStep{"x"}, FormStep{NormalForm::Nfkc}).may_remove_beginning());
}

}  // namespace
}  // namespace meshtrain
