#include <gtest/gtest.h>
#include <zlib.h>

#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/base/unicode/unicode.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/tokenizer/text_stream.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/tokenizer/fixtures.h"
#include "tests/tokenizer/mixed_texts.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::content;
using testing::corpus;
using testing::fixture;
using testing::kShapes;
using testing::message;
using testing::mixed_texts;
using testing::Reader;
using testing::ScratchFolder;
using testing::write_file;

uint32_t crc(const void* data, size_t bytes) {
  return static_cast<uint32_t>(crc32(0, static_cast<const Bytef*>(data), static_cast<uInt>(bytes)));
}

// Each letter beside others: one was not a word's in a table that was asked of the package.
TEST(Words, HaveAllLetters) {
  for (const char c : std::string("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")) {
    EXPECT_TRUE(is_word(static_cast<uint32_t>(c))) << c;
  }
  for (const char c : std::string(" .-@")) EXPECT_FALSE(is_word(static_cast<uint32_t>(c))) << c;
}

class Shape : public ::testing::TestWithParam<std::string> {};

TEST_P(Shape, GivesTheIdsOfThePackageForAMillionCharacters) {
  const auto tokenizer = load_tokenizer(fixture(GetParam()));
  std::vector<std::string> texts = corpus();
  const std::vector<std::string> mixed = mixed_texts();
  texts.insert(texts.end(), mixed.begin(), mixed.end());
  Reader expected(fixture(GetParam()) / "mixed.bin");
  size_t characters = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int64_t> ids = tokenizer->ids(texts[i]);
    const std::vector<uint32_t> short_ids(ids.begin(), ids.end());
    const std::string decoded = with_replacements(tokenizer->decode(ids));
    EXPECT_EQ(ids.size(), expected.number<uint32_t>()) << "text " << i << ": " << texts[i].substr(0, 200);
    EXPECT_EQ(crc(short_ids.data(), 4 * ids.size()), expected.number<uint32_t>()) << "ids of text " << i;
    EXPECT_EQ(crc(decoded.data(), decoded.size()), expected.number<uint32_t>()) << "text of the ids of text " << i;
    for (const char c : texts[i]) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }
  EXPECT_TRUE(expected.done());
  EXPECT_GT(characters, 1'000'000u);
}

INSTANTIATE_TEST_SUITE_P(All, Shape,
                         ::testing::Values("mistral", "llama2", "gemma", "nfkc", "words", "nfkd", "partial", "gpt2",
                                           "llama3", "smollm2", "qwen", "flags", "merged"),
                         [](const auto& instance) { return instance.param; });

class ShapeSamples : public ::testing::TestWithParam<std::string> {};

TEST_P(ShapeSamples, AreThoseOfThePackage) {
  const auto tokenizer = load_tokenizer(fixture(GetParam()));
  for (const json& sample : json::parse(content(fixture(GetParam()) / "samples.json"))) {
    const std::string text = sample.at("text");
    const std::vector<int64_t> ids = tokenizer->ids(text);
    EXPECT_EQ(ids, sample.at("ids").get<std::vector<int64_t>>()) << text;
    EXPECT_EQ(tokenizer->decode(ids), sample.at("decoded").get<std::string>()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShapeSamples, ::testing::ValuesIn(kShapes),
                         [](const auto& instance) { return instance.param; });

TEST(Shapes, StreamTheTextOfAll) {
  for (const std::string& name : kShapes) {
    const auto tokenizer = load_tokenizer(fixture(name));
    const std::vector<std::string> texts = corpus();
    for (size_t i = 0; i < texts.size(); i += 3) {
      const std::vector<int64_t> ids = tokenizer->ids(texts[i]);
      TextStream stream(*tokenizer, {});
      std::string streamed;
      for (const int64_t id : ids) streamed += stream.add(id);
      streamed += stream.finish();
      EXPECT_EQ(streamed, with_replacements(tokenizer->decode(ids, /*skip_special=*/true))) << name << " text " << i;
    }
  }
}

TEST(Shapes, KeepBytesThatAreNoUtf8ForTheNextToken) {
  const auto tokenizer = load_tokenizer(fixture("llama2"));
  const auto byte = [&](const char* token) { return *tokenizer->token_id(token); };
  EXPECT_EQ(tokenizer->decode({byte("<0xF0>"), byte("<0x9F>")}), "\xF0\x9F");
  TextStream stream(*tokenizer, {});
  std::string text;
  for (int round = 0; round < 6; ++round) {
    for (const char* token : {"<0xE4>", "<0xB8>", "<0xAD>"}) text += stream.add(byte(token));
  }
  EXPECT_EQ(text, "中中中中中中") << "no context of the last tokens is cut within a character";
}

/// The refusal of the fixture `name` after `change`, without the file's name.
template <class Change>
std::string refusal(const std::string& name, const Change& change) {
  const ScratchFolder scratch;
  json document = json::parse(content(fixture(name) / "tokenizer.json"));
  change(document);
  const std::filesystem::path file = scratch.path() / "tokenizer.json";
  write_file(file, document.dump());
  const std::string text = message<InputError>([&] { load_tokenizer(file); });
  EXPECT_TRUE(text.starts_with(file.string() + ": ")) << text;
  return text.substr(std::min(text.size(), file.string().size() + 2));
}

TEST(Shapes, RefuseWhatTheyCannotDoAsThePackageDoes) {
  EXPECT_EQ(refusal("llama2",
                    [](json& d) {
                      d["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}};
                    }),
            "pre_tokenizer.prepend_scheme is first, which is not supported with a normalizer that may remove the "
            "beginning of a text");
  EXPECT_EQ(refusal("llama2", [](json& d) { d["pre_tokenizer"]["replacement"] = "ab"; }),
            "pre_tokenizer.replacement is not one character: \"ab\"");
  EXPECT_EQ(refusal("llama2", [](json& d) { d["pre_tokenizer"]["prepend_scheme"] = "last"; }),
            "pre_tokenizer.prepend_scheme is \"last\", not one of always, first, never");
  EXPECT_EQ(refusal("llama2", [](json& d) { d["pre_tokenizer"]["add_prefix_space"] = false; }),
            "pre_tokenizer.add_prefix_space is false, but prepend_scheme is first");
  EXPECT_EQ(refusal("llama2", [](json& d) { d["decoder"]["decoders"][3]["stop"] = 1; }),
            "decoder.decoders[3].stop is not 0, the only supported value");
  EXPECT_EQ(refusal("nfkd",
                    [](json& d) {
                      d["decoder"] = {{"type", "Fuse"}};
                    }),
            "decoder has no ByteLevel, which a pre_tokenizer with ByteLevel needs");
  EXPECT_EQ(refusal("nfkd",
                    [](json& d) {
                      d["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Whitespace"}});
                    }),
            "pre_tokenizer.pretokenizers[2] follows a ByteLevel, which must be the last one");
  EXPECT_EQ(refusal("words", [](json& d) { d["model"]["unk_token"] = "nothing like it"; }),
            "model.unk_token is not in model.vocab");
  EXPECT_EQ(refusal("words", [](json& d) { d["post_processor"]["sep"] = json::array({"</s>"}); }),
            "post_processor.sep must have a token and its id");
  EXPECT_EQ(refusal("nfkc",
                    [](json& d) {
                      d["added_tokens"].back()["content"] = " ";
                      d["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
                    }),
            "added_tokens[3].content is empty when it is normalised");
}

TEST(NormalForms, AreThoseOfTheStandard) {
  EXPECT_EQ(normal_form(NormalForm::Nfd, "\u1e9b\u0323"), "\u017f\u0323\u0307");
  EXPECT_EQ(normal_form(NormalForm::Nfc, "\u1e9b\u0323"), "\u1e9b\u0323");
  EXPECT_EQ(normal_form(NormalForm::Nfkd, "\u1e9b\u0323"), "s\u0323\u0307");
  EXPECT_EQ(normal_form(NormalForm::Nfkc, "\u1e9b\u0323"), "\u1e69");
  EXPECT_EQ(normal_form(NormalForm::Nfkc, "\ufdfa").size(), 33u) << "the longest decomposition";
  EXPECT_EQ(normal_form(NormalForm::Nfd, "\uac01"), "\u1100\u1161\u11a8");
}

}  // namespace
}  // namespace meshtrain
