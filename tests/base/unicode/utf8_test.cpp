#include "mesh/base/unicode/utf8.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(Utf8, ReplacesMaximalParts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(with_replacements("a\xff"
                              "b"),
            "a" + r + "b");
  EXPECT_EQ(with_replacements("\xe2\x82"), r) << "cut short";
  EXPECT_EQ(with_replacements("\xe2\x82x"), r + "x");
  EXPECT_EQ(with_replacements("\xf0\x9f\x98\xe2\x82\xac"), r + "\u20AC");
  EXPECT_EQ(with_replacements("\xed\xa0\x80"), r + r + r) << "a surrogate";
  EXPECT_EQ(with_replacements("\xc0\x80\xe0\x80\x80"), r + r + r + r + r) << "longer than it has to be";
  EXPECT_EQ(with_replacements("\xf4\x90\x80\x80"), r + r + r + r) << "beyond U+10FFFF";
  EXPECT_EQ(with_replacements("\xf4\x8f\xbf\xbf\xef\xbf\xbf"), "\xf4\x8f\xbf\xbf\xef\xbf\xbf");
}

TEST(Utf8, CountsBytesOfNoCharacter) {
  EXPECT_EQ(invalid_utf8("all of it, \u20AC too"), 0u);
  EXPECT_EQ(invalid_utf8("a\xff"
                         "b\xe2\x82"),
            3u);
  EXPECT_EQ(invalid_utf8("\xed\xa0\x80\u20AC\xc0"), 4u);
}

TEST(Utf8, WritesWhatItReads) {
  for (uint32_t c = 0; c < kCodePoints; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string text;
    append_utf8(c, text);
    ASSERT_EQ(valid_utf8(text), text.size()) << c;
    const char* at = text.data();
    ASSERT_EQ(next_code_point(at), c);
    ASSERT_EQ(at, text.data() + text.size()) << c;
    ASSERT_EQ(previous_code_point(at), c);
    ASSERT_EQ(at, text.data()) << c;
  }
}

}  // namespace
}  // namespace meshtrain
