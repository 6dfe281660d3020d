#include "runtime/text/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

class AddedTokens : public ::testing::Test {
 protected:
  static AddedToken token(const std::string& content, uint32_t id) {
    AddedToken made;
    made.content = made.pattern = content;
    made.id = id;
    return made;
  }
  /// Returns the pieces of `text`: "a|<7:x>|b".
  static std::string pieces_of(const std::string& text, std::vector<AddedToken> tokens) {
    std::vector<AddedTokenFinder::Piece> pieces;
    AddedTokenFinder(std::move(tokens)).split(text, pieces);
    std::string all;
    for (const auto& piece : pieces) {
      EXPECT_FALSE(piece.text.empty()) << text;
      all += all.empty() ? "" : "|";
      all += piece.id ? "<" + std::to_string(*piece.id) + ":" + std::string(piece.text) + ">" : std::string(piece.text);
    }
    return all;
  }
};

TEST_F(AddedTokens, TheLongestOfThoseThatBeginFirstIsTaken) {
  const std::vector<AddedToken> tokens = {token("ab", 1), token("abc", 2), token("bcde", 3)};
  EXPECT_EQ(pieces_of("xabcde", tokens), "x|<2:abc>|de");
  EXPECT_EQ(pieces_of("abdab", tokens), "<1:ab>|d|<1:ab>");
  EXPECT_EQ(pieces_of("abcabc", tokens), "<2:abc>|<2:abc>");
  EXPECT_EQ(pieces_of("abxbcd", tokens), "<1:ab>|xbcd");
  EXPECT_EQ(pieces_of("", tokens), "");
}

TEST_F(AddedTokens, AWordIsNotFoundInsideAnother) {
  AddedToken word = token("an", 1);
  word.single_word = true;
  EXPECT_EQ(pieces_of("an man any éan an.", {word}), "<1:an>| man any éan |<1:an>|.");
  EXPECT_EQ(pieces_of("anan", {word}), "anan");
}

TEST_F(AddedTokens, TakeTheSpacesThatTheyAskFor) {
  AddedToken left = token("<l>", 1), right = token("<r>", 2);
  left.strip_left = true;
  right.strip_right = true;
  EXPECT_EQ(pieces_of("a \u2003<l> b", {left, right}), "a|<1:<l>>| b");
  EXPECT_EQ(pieces_of("a <r> \n b", {left, right}), "a |<2:<r>>|b");
  EXPECT_EQ(pieces_of("<r>  <l>", {left, right}), "<2:<r>>|<1:<l>>") << "spaces are taken once";
  EXPECT_EQ(pieces_of("  <l>", {left, right}), "<1:<l>>");
}

}  // namespace
}  // namespace meshtrain
