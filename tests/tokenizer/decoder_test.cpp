#include "runtime/text/tokenizer/decoder.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

using Tokens = std::vector<std::string>;

TEST(Decoder, WithoutStepsJoinsTokens) {
  EXPECT_EQ(decode_tokens({}, {"a", "b"}), "ab");
  EXPECT_EQ(decode_tokens({}, {}), "");
}

TEST(Decoder, ByteLevelKeepsATokenOutsideTheAlphabet) {
  EXPECT_EQ(decode_tokens({ByteLevelDecoding{}}, {"Ġcaf", "Ã", "©", "<|end of text|>"}), " café<|end of text|>");
}

TEST(Decoder, FallbackBytesBecomeTheirCharacter) {
  EXPECT_EQ(decode_tokens({ByteFallbackDecoding{}}, {"a", "<0xC3>", "<0xa9>", "<0x4>", "<0xGG>"}), "aé<0x4><0xGG>");
}

TEST(Decoder, StripsALimitedNumberFromTheBeginningOfEachToken) {
  EXPECT_EQ(decode_tokens({StripDecoding{" ", 1}}, {"  a", " b", "c "}), " abc ");
  EXPECT_EQ(decode_tokens({FuseDecoding{}, StripDecoding{" ", 1}}, {"  a", " b"}), " a b")
      << "only one token is left to strip";
}

TEST(Decoder, MetaspaceDropsOnlyTheFirstSpace) {
  const Tokens tokens = {"▁a▁b", "▁c"};
  EXPECT_EQ(decode_tokens({MetaspaceDecoding{"▁", false}}, tokens), "ab c");
  EXPECT_EQ(decode_tokens({MetaspaceDecoding{"▁", true}}, tokens), " a b c");
}

// These are the steps of Llama 2.
TEST(Decoder, TakesItsStepsInTheirOrder) {
  const std::vector<DecodingStep> steps = {ReplaceDecoding{"▁", " "}, ByteFallbackDecoding{}, FuseDecoding{},
                                           StripDecoding{" ", 1}};
  EXPECT_EQ(decode_tokens(steps, {"▁a", "▁", "<0x0A>", "▁b"}), "a \n b");
  EXPECT_EQ(decode_tokens({SpacesDecoding{}}, {"a", "b"}), "a b");
}

}  // namespace
}  // namespace meshtrain
