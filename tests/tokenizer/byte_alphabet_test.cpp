#include "runtime/text/tokenizer/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>

namespace meshtrain {
namespace {

TEST(ByteAlphabet, WritesEachByteAsACharacterOfItsOwn) {
  std::set<std::string> written;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character = written_byte(static_cast<unsigned char>(byte));
    EXPECT_TRUE(written.insert(character).second) << byte;
    EXPECT_EQ(bytes_of_token(character), std::string(1, static_cast<char>(byte)));
  }
}

// In the files of GPT-2 a space is Ġ and a line end Ċ.
TEST(ByteAlphabet, IsThatOfGpt2) {
  EXPECT_EQ(written_byte('A'), "A");
  EXPECT_EQ(written_byte(' '), "Ġ");
  EXPECT_EQ(written_byte('\n'), "Ċ");
  EXPECT_EQ(written_byte(0xAD), "Ń") << "the soft hyphen does not print";
  EXPECT_EQ(bytes_of_token("Ġcaf\u00c3\u00a9"), " café");
}

TEST(ByteAlphabet, HasNoOtherCharacters) {
  for (const char* token : {" ", "a b", "😀", "Ń\u0144", "\u2581"})
    EXPECT_EQ(bytes_of_token(token), std::nullopt) << token;
}

}  // namespace
}  // namespace meshtrain
