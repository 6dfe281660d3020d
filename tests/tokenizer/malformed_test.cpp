#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/tokenizer/fixtures.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::content;
using testing::damaged;
using testing::fixture;
using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::write_file;

/// Expects any file to be a tokenizer or to be refused in one line.
void expect_no_surprise(const std::filesystem::path& file, const std::string& bytes) {
  write_file(file, bytes);
  try {
    const auto tokenizer = load_tokenizer(file);
    const std::vector<int64_t> ids = tokenizer->ids("It's 12 <mask> caf\u00e9\r\n<|endoftext|> \xff x");
    tokenizer->decode(ids);
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

TEST(Malformed, TokenizerJson) {
  const ScratchFolder scratch;
  std::mt19937_64 random(1);
  std::vector<std::string> names = testing::kHuggingFaceFixtures;
  names.insert(names.end(), testing::kShapes.begin(), testing::kShapes.end());
  for (const std::string& name : names) {
    const std::string full = content(fixture(name) / "tokenizer.json");
    for (int round = 0; round < 60; ++round) {
      expect_no_surprise(scratch.path() / "tokenizer.json", damaged(full, random));
    }
    // The vocabulary is most of the file; the text around it is damaged separately.
    const size_t model = full.find("\"vocab\"");
    ASSERT_NE(model, std::string::npos);
    for (int round = 0; round < 60; ++round) {
      std::string text = full;
      for (uint64_t flips = 1 + random() % 2; flips > 0; --flips) {
        text[random() % model] = "{}[]\",:0179 aeltx\\+*?(|)^-"[random() % 26];
      }
      expect_no_surprise(scratch.path() / "tokenizer.json", text);
    }
  }
}

// Replaces every value of the document in turn by a value of another kind.
void replace_each(const json& full, json& value, const std::filesystem::path& file, int depth = 0) {
  if (value.is_structured() && depth < 6) {
    int left = 6;  // only the first ones of long lists
    for (json& inner : value) {
      if (left-- == 0) break;
      replace_each(full, inner, file, depth + 1);
    }
  }
  const json before = value;
  for (const json& other : {json(), json(-1), json(1e300), json("x"), json::array(), json::object(), json(true)}) {
    value = other;
    expect_no_surprise(file, full.dump());
  }
  value = before;
}

TEST(Malformed, ValuesOfOtherKinds) {
  const ScratchFolder scratch;
  for (const char* name : {"flags", "llama2", "nfkc", "words", "partial"}) {
    json document = json::parse(content(fixture(name) / "tokenizer.json"));
    document["model"]["merges"].erase(document["model"]["merges"].begin() + 8, document["model"]["merges"].end());
    replace_each(document, document, scratch.path() / "tokenizer.json");
  }
}

TEST(Malformed, SentencePieceModel) {
  const ScratchFolder scratch;
  std::mt19937_64 random(1);
  const std::string full = content(fixture("sentencepiece") / "tokenizer.model");
  for (int round = 0; round < 100; ++round) {
    expect_no_surprise(scratch.path() / "tokenizer.model", damaged(full, random));
  }
}

/// Returns a field of a message in Protocol Buffers' encoding, shorter than 128 * 128 bytes.
std::string field(int number, const std::string& content) {
  std::string text(1, static_cast<char>(number << 3 | 2));
  text += static_cast<char>(content.size() % 128 | 128);
  text += static_cast<char>(content.size() / 128);
  return text + content;
}

/// A copy of the fixture's model with another table of characters, whose units are these, at their offsets, or 0.
class SentencePieceTable : public ::testing::Test {
 protected:
  static constexpr uint32_t kLeaf = 1U << 8, kValue = 1U << 31;
  static uint32_t offset(uint32_t value) { return value << 10; }

  /// 'a', one unit, is replaced by what is at `index` of `replacements`.
  std::map<uint32_t, uint32_t> rule(uint32_t index = 0) const {
    return {{0, offset(256)}, {256 ^ 'a', offset(1) | kLeaf | 'a'}, {256 ^ 'a' ^ 1, kValue | index}};
  }
  std::filesystem::path model(const std::map<uint32_t, uint32_t>& units,
                              const std::string& replacements = std::string("b\0", 2)) const {
    std::vector<uint32_t> table(512);
    for (const auto& [index, bits] : units) table[index] = bits;
    const auto bytes = static_cast<uint32_t>(table.size() * sizeof(uint32_t));
    const std::string blob = std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) +
                             std::string(reinterpret_cast<const char*>(table.data()), bytes) + replacements;
    write_file(file_, content(fixture("sentencepiece") / "tokenizer.model") + field(3, field(2, blob)));
    return file_;
  }
  std::string refusal(const std::map<uint32_t, uint32_t>& units,
                      const std::string& replacements = std::string("b\0", 2)) const {
    const std::string text = message<InputError>([&] { load_tokenizer(model(units, replacements)); });
    const std::string start = file_.string() + ": not a SentencePiece model: ";
    EXPECT_TRUE(text.starts_with(start)) << text;
    return text.substr(std::min(text.size(), start.size()));
  }

  ScratchFolder scratch_;
  std::filesystem::path file_ = scratch_.path() / "tokenizer.model";
};

TEST_F(SentencePieceTable, IsFollowed) {
  const auto tokenizer = load_tokenizer(model(rule()));
  EXPECT_EQ(tokenizer->ids("xaxa"), tokenizer->ids("xbxb"));
}

TEST_F(SentencePieceTable, LeadsNowhereElse) {
  EXPECT_EQ(refusal({{0, offset(1U << 20)}}), "its table of characters leads beyond its end");
  auto beyond = rule();
  beyond[256 ^ 'a'] = offset(1U << 20) | kLeaf | 'a';
  EXPECT_EQ(refusal(beyond), "its table of characters leads beyond its end");
  EXPECT_EQ(refusal(rule(2)), "its table of characters leads beyond its replacements");
  EXPECT_EQ(refusal(rule(), std::string(5000, 'x')), "its table of characters has a replacement without an end");
  auto circle = rule();
  circle[256 ^ 'a'] = offset('a') | kLeaf | 'a';  // from 'a' to the unit that looks up 'a'
  circle[256] = kValue;
  EXPECT_EQ(refusal(circle), "its table of characters has a loop");
  EXPECT_EQ(refusal({}, ""), "its table of characters was cut short");
}

class Refused : public ::testing::Test {
 protected:
  json document_ = json::parse(content(fixture("qwen") / "tokenizer.json"));

  std::string refusal() {
    write_file(scratch_.path() / "tokenizer.json", document_.dump());
    const std::string text = message<InputError>([&] { load_tokenizer(scratch_.path()); });
    const std::string file = (scratch_.path() / "tokenizer.json").string() + ": ";
    EXPECT_TRUE(text.starts_with(file)) << text;
    return text.substr(std::min(text.size(), file.size()));
  }

  ScratchFolder scratch_;
};

TEST_F(Refused, ComponentsByName) {
  const json full = document_;
  document_["pre_tokenizer"]["pretokenizers"][0]["type"] = "UnicodeScripts";
  EXPECT_EQ(
      refusal(),
      "pre_tokenizer.pretokenizers[0].type is \"UnicodeScripts\", which is not supported; supported are: ByteLevel, "
      "Metaspace, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Sequence");
  document_ = full;
  document_["normalizer"]["type"] = "Nmt";
  EXPECT_EQ(refusal(),
            "normalizer.type is \"Nmt\", which is not supported; supported are: NFC, NFD, NFKC, NFKD, Strip, Prepend, "
            "Replace, Sequence");
  document_ = full;
  document_["model"]["type"] = "WordPiece";
  EXPECT_EQ(refusal(), "model.type is \"WordPiece\", which is not supported; supported are: BPE");
  document_ = full;
  document_["decoder"]["type"] = "WordPiece";
  EXPECT_TRUE(has(refusal(), "decoder.type is \"WordPiece\""));
  document_ = full;
  document_["post_processor"]["type"] = "OtherProcessing";
  EXPECT_TRUE(has(refusal(), "post_processor.type is \"OtherProcessing\""));
  document_ = full;
  document_["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a\\b";
  EXPECT_EQ(
      refusal(),
      "pre_tokenizer.pretokenizers[0].pattern is refused: the regular expression a\\b has the escape \\b, which is not "
      "supported, at byte 3");
}

TEST_F(Refused, ModelsThatContradictThemselves) {
  const json full = document_;
  document_["model"]["merges"][3] = {"a", "nothing like it"};
  EXPECT_EQ(refusal(), "model.merges[3] has the token \"nothing like it\", which is not in model.vocab");
  document_ = full;
  document_["model"]["merges"][3] = "one two three";
  EXPECT_TRUE(has(refusal(), "model.merges[3] is not two tokens with one space between"));
  document_ = full;
  document_["model"]["vocab"]["another"] = 5;
  EXPECT_TRUE(has(refusal(), "model.vocab has id 5 twice"));
  document_ = full;
  document_["model"]["vocab"]["another"] = -5;
  EXPECT_EQ(refusal(), "model.vocab.another is -5, not a token id");
  document_ = full;
  document_["model"]["byte_fallback"] = true;
  EXPECT_TRUE(has(refusal(), "model.byte_fallback is true"));
  document_ = full;
  document_["model"]["dropout"] = 0.1;
  EXPECT_TRUE(has(refusal(), "model.dropout is not 0"));
  document_ = full;
  document_["added_tokens"][1]["id"] = 9;
  EXPECT_TRUE(has(refusal(), "added_tokens[1].id is 9, but \"<|im_start|>\" has to be 1101"));
}

TEST(LoadTokenizer, RefusesWhatIsNone) {
  const ScratchFolder scratch;
  const auto refusal = [](const std::string& name) { return message<InputError>([&] { load_tokenizer(name); }); };
  EXPECT_TRUE(has(refusal(scratch.path() / "none"), "there is no such file or folder; a tokenizer is a folder with"));
  EXPECT_TRUE(has(refusal(scratch.path()), "the folder has neither tokenizer.json nor tokenizer.model"));
  write_file(scratch.path() / "tokenizer.model", "no model");
  EXPECT_TRUE(has(refusal(scratch.path()), "not a SentencePiece model"));
  write_file(scratch.path() / "tokenizer.json", "{");
  EXPECT_TRUE(has(refusal(scratch.path()), "not valid JSON"));
}

}  // namespace
}  // namespace meshtrain
