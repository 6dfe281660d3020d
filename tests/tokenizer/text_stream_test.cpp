#include "runtime/text/tokenizer/text_stream.h"

#include <gtest/gtest.h>

#include "mesh/base/unicode/utf8.h"
#include "tests/tokenizer/fixtures.h"

namespace meshtrain::testing {
namespace {

struct Streamed {
  std::vector<std::string> pieces;  // finish() returns the last one
  std::string full() const {
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    return text;
  }
};

Streamed stream(const Tokenizer& tokenizer, const std::vector<int64_t>& ids, const std::vector<int64_t>& before = {}) {
  TextStream text(tokenizer, before);
  Streamed streamed;
  for (const int64_t id : ids) streamed.pieces.push_back(text.add(id));
  streamed.pieces.push_back(text.finish());
  return streamed;
}

std::vector<int64_t> bytes_of(const std::string& text) {
  return load_tokenizer("bytes")->ids(text);
}

std::vector<std::string> pieces_of_bytes(const std::string& text) {
  return stream(*load_tokenizer("bytes"), bytes_of(text)).pieces;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, GivesWholeCharacters) {
  EXPECT_EQ(pieces_of_bytes("aé"), (Pieces{"a", "", "é", ""}));
  EXPECT_EQ(pieces_of_bytes("中b"), (Pieces{"", "", "中", "b", ""}));
  EXPECT_EQ(pieces_of_bytes("😀"), (Pieces{"", "", "", "😀", ""}));
}

TEST(TextStream, GivesWhatCannotBecomeACharacterAtOnce) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(pieces_of_bytes("\xFF"
                            "a"),
            (Pieces{bad, "a", ""}));
  EXPECT_EQ(pieces_of_bytes("\xE4"
                            "a"),
            (Pieces{"", bad + "a", ""}));
  EXPECT_EQ(pieces_of_bytes("\xE0\x80"), (Pieces{"", bad + bad, ""})) << "no character begins so";
  EXPECT_EQ(pieces_of_bytes("\xED\xA0"), (Pieces{"", bad + bad, ""})) << "a surrogate";
  EXPECT_EQ(pieces_of_bytes("\xF4\x90"), (Pieces{"", bad + bad, ""})) << "beyond the last character";
  EXPECT_EQ(pieces_of_bytes("\xED\x9F\xBF"), (Pieces{"", "", "\xED\x9F\xBF", ""}));
  EXPECT_EQ(pieces_of_bytes("\xF0\x90"), (Pieces{"", "", bad})) << "an end within a character";
  EXPECT_EQ(pieces_of_bytes("a\xE4\xB8"), (Pieces{"a", "", "", bad}));
}

TEST(TextStream, OfEveryTokenizerIsTheTextOfAll) {
  std::vector<std::string> names = kHuggingFaceFixtures;
  names.emplace_back("sentencepiece");
  const std::vector<std::string> texts = corpus();
  for (const std::string& name : names) {
    const auto tokenizer = load_tokenizer(fixture(name).string());
    for (size_t i = 0; i < texts.size(); i += 7) {
      const std::vector<int64_t> ids = tokenizer->ids(texts[i]);
      const Streamed streamed = stream(*tokenizer, ids);
      const std::string full = with_replacements(tokenizer->decode(ids, /*skip_special=*/true));
      EXPECT_EQ(streamed.full(), full) << name << " text " << i;
      for (const std::string& piece : streamed.pieces) EXPECT_EQ(valid_utf8(piece), piece.size()) << name;
    }
  }
}

TEST(TextStream, ContinuesWhatIsBefore) {
  for (const char* name : {"sentencepiece", "llama3", "gpt2"}) {
    const auto tokenizer = load_tokenizer(fixture(name).string());
    const std::vector<int64_t> ids = tokenizer->ids("The quick brown fox, mañana 中文 at noon.");
    const std::string full = tokenizer->decode(ids, /*skip_special=*/true);
    for (size_t cut = 1; cut < ids.size(); ++cut) {
      const std::vector<int64_t> before(ids.begin(), ids.begin() + static_cast<int64_t>(cut));
      const std::string beginning = tokenizer->decode(before, /*skip_special=*/true);
      if (valid_utf8(beginning) != beginning.size() || beginning.ends_with("\xEF\xBF\xBD")) continue;
      const std::vector<int64_t> rest(ids.begin() + static_cast<int64_t>(cut), ids.end());
      EXPECT_EQ(beginning + stream(*tokenizer, rest, before).full(), full) << name << " cut at " << cut;
    }
  }
}

TEST(TextStream, SpecialTokensAreNoText) {
  const auto tokenizer = load_tokenizer(fixture("llama3").string());
  ASSERT_FALSE(tokenizer->special_tokens().empty());
  const int64_t special = tokenizer->special_tokens().front().id;
  std::vector<int64_t> ids = tokenizer->ids("ab", /*add_special=*/false);
  ids.push_back(special);
  EXPECT_EQ(stream(*tokenizer, ids).full(), "ab");
}

}  // namespace
}  // namespace meshtrain::testing
