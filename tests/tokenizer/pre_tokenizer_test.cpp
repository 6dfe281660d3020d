#include "runtime/text/tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "mesh/base/unicode/unicode.h"

namespace meshtrain {
namespace {

class PreTokenizerTest : public ::testing::Test {
 protected:
  /// Returns the words of `text`, each in brackets.
  template <class... Steps>
  static std::string words_of(const std::string& text, Steps&&... steps) {
    std::vector<PreTokenizerStep> all;
    (all.emplace_back(std::forward<Steps>(steps)), ...);
    return words_of(PreTokenizer(std::move(all)), text, /*is_first=*/true);
  }
  static std::string words_of(const PreTokenizer& cutter, const std::string& text, bool is_first) {
    PreTokenizer::Scratch scratch;
    cutter.split(text, is_first, scratch);
    std::string joined;
    for (const std::string_view word : scratch.words) joined += "[" + std::string(word) + "]";
    return joined;
  }
  static SplitStep split(SplitBehavior behavior, bool invert = false) { return {Pattern("-"), behavior, invert}; }
};

TEST_F(PreTokenizerTest, MatchesGoWhereTheirBehaviorSays) {
  const std::string text = "-a--b-";
  EXPECT_EQ(words_of(text, split(SplitBehavior::Isolated)), "[-][a][-][-][b][-]");
  EXPECT_EQ(words_of(text, split(SplitBehavior::Removed)), "[a][b]");
  EXPECT_EQ(words_of(text, split(SplitBehavior::MergedWithPrevious)), "[-][a-][-][b-]");
  EXPECT_EQ(words_of(text, split(SplitBehavior::MergedWithNext)), "[-a][-][-b][-]");
  EXPECT_EQ(words_of(text, split(SplitBehavior::Contiguous)), "[-][a][--][b][-]");
  EXPECT_EQ(words_of(text, split(SplitBehavior::Removed, /*invert=*/true)), "[-][-][-][-]");
}

TEST_F(PreTokenizerTest, EachStepCutsThePiecesOfTheOneBefore) {
  EXPECT_EQ(words_of("a1-22", split(SplitBehavior::Removed), DigitsStep{}), "[a][1][22]");
  EXPECT_EQ(words_of("a122b", DigitsStep{.individual = true}), "[a][1][2][2][b]");
  EXPECT_EQ(words_of("x٣٤y", DigitsStep{}), "[x][٣٤][y]") << "digits of any script";
}

TEST_F(PreTokenizerTest, WordsAreRunsOfOneKindWithoutSpaces) {
  EXPECT_EQ(words_of(" it's  café--ok_1 ", WordsStep{}), "[it]['][s][café][--][ok_1]");
}

TEST_F(PreTokenizerTest, CharactersAreCutAtEach) {
  EXPECT_EQ(words_of("a \u2003b", CharactersStep{is_space, SplitBehavior::Removed}), "[a][b]");
}

TEST_F(PreTokenizerTest, AFirstSpaceIsAddedWhereThereIsNone) {
  EXPECT_EQ(words_of("a b", PrefixSpaceStep{}), "[ a b]");
  EXPECT_EQ(words_of(" a", PrefixSpaceStep{}), "[ a]");
}

TEST_F(PreTokenizerTest, MetaspaceCutsBeforeEachAndPrependsOnRequest) {
  using Prepend = MetaspaceStep::Prepend;
  EXPECT_EQ(words_of("a  b", MetaspaceStep{"▁", Prepend::Always, true}), "[▁a][▁][▁b]");
  EXPECT_EQ(words_of(" a", MetaspaceStep{"▁", Prepend::Always, true}), "[▁a]") << "the text already begins with it";
  EXPECT_EQ(words_of("a b", MetaspaceStep{"▁", Prepend::Never, true}), "[a][▁b]");
  EXPECT_EQ(words_of("a b", MetaspaceStep{"▁", Prepend::Always, false}), "[▁a▁b]");
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(MetaspaceStep{"▁", Prepend::First, true});
  const PreTokenizer first(std::move(steps));
  EXPECT_EQ(words_of(first, "a b", /*is_first=*/true), "[▁a][▁b]");
  EXPECT_EQ(words_of(first, "a b", /*is_first=*/false), "[a][▁b]");
}

TEST_F(PreTokenizerTest, AScratchMayBeUsedAgain) {
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(split(SplitBehavior::Removed));
  const PreTokenizer cutter(std::move(steps));
  PreTokenizer::Scratch scratch;
  cutter.split("a-b", true, scratch);
  cutter.split("c", true, scratch);
  EXPECT_EQ(scratch.words, std::vector<std::string_view>{"c"});
  cutter.split("", true, scratch);
  EXPECT_TRUE(scratch.words.empty());
}

}  // namespace
}  // namespace meshtrain
