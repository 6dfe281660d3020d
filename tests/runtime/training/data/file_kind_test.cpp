#include "runtime/training/data/file_kind.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mesh/base/error.h"
#include "runtime/program/recipe/check_data.h"
#include "runtime/training/data/check_tokens.h"
#include "runtime/training/data/dataset.h"
#include "runtime/training/data/token_sidecar.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

class KindOfFile : public ::testing::Test {
 protected:
  /// Returns the name of what a file of these bytes is, with a question mark where that is uncertain.
  std::string kind(const std::string& bytes, const std::string& dtype = "uint16") {
    write_file(file_, bytes);
    const std::optional<FileKind> found = kind_of_no_tokens(file_, dtype);
    if (!found) return "tokens";
    advice_ = found->advice;
    return found->name + (found->is_certain ? "" : "?");
  }

  /// Returns why a recipe that reads a file of these bytes is refused.
  std::string refusal(const std::string& bytes, const std::string& dtype = "uint16") {
    write_file(file_, bytes);
    Recipe recipe;
    recipe.data.tokens = file_;
    recipe.data.dtype = dtype;
    recipe.locations["data.tokens"] = "r.yaml:3:5: data.tokens";
    return message<InputError>([&] { check_sidecars(recipe); });
  }

  ScratchFolder scratch_;
  std::filesystem::path file_ = scratch_.path() / "t.bin";
  std::string advice_;
};

const std::string kLines = R"({"text": "One line of a text that goes on for some more words than are needed."})"
                           "\n{\"text\": \"two\"}\n";
const std::string kChat = R"({"messages": [{"role": "user", "content": "a question that goes on for some words"}]})";
const std::string kProse = "It was the best of times, it was the worst of times, it was the age of wisdom.\n";

TEST_F(KindOfFile, IsSeenByItsBeginning) {
  EXPECT_EQ(kind(kLines), "JSON Lines text");
  EXPECT_EQ(advice_, "make tokens from it with meshtrain data prepare --text " + file_.string());
  EXPECT_EQ(kind("\xEF\xBB\xBF\n " + kChat + "\n" + kChat, "uint32"), "JSON Lines text");
  EXPECT_EQ(advice_, "make tokens from it with meshtrain data prepare --chat " + file_.string());
  EXPECT_EQ(kind("[" + kChat + ",\n" + kChat + "]"), "JSON text");
  EXPECT_EQ(kind(R"([{"role": "user", "content": "a question that goes on for some words and some more"}])"
                 "\n"),
            "JSON Lines text");
  EXPECT_EQ(advice_, "make tokens from it with meshtrain data prepare --chat " + file_.string());
  EXPECT_EQ(kind("{\n  \"a\": \"" + std::string(100'000, 'x') + "\"}"), "JSON text") << "longer than what is looked at";
  EXPECT_EQ(kind(R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": 0}]})"),
            "the JSON of a tokenizer");
  EXPECT_EQ(kind(std::string("\x1F\x8B\x08\0\0\0\0\0\0\x03", 10) + "compressed"), "a file compressed by gzip");
  EXPECT_EQ(kind("\x28\xB5\x2F\xFD compressed"), "a file compressed by zstd");
  EXPECT_EQ(kind("PAR1 columns"), "a Parquet file");
  EXPECT_EQ(kind("\x93NUMPY\x01"), "a NumPy array with its header");
  EXPECT_EQ(kind(std::string("MMIDIDX\0\0\1", 10)), "a Megatron index");
  EXPECT_EQ(kind("<!DOCTYPE html>\n<html></html>\n"), "a page of HTML");
  EXPECT_EQ(advice_, "download the file again, instead of " + file_.string());
  EXPECT_EQ(kind(std::string(100, '\0')), "tokens");
  EXPECT_EQ(kind(kProse), "text?");
  EXPECT_EQ(kind(kProse + std::string(70'000, 'a') + "\xC3\xA9"), "text?");
  std::string book;
  while (book.size() < 100'000) book += kProse;
  EXPECT_EQ(kind(book), "text");
  EXPECT_EQ(kind(book.substr(0, 4096), "uint32"), "text");
  EXPECT_EQ(kind(book.substr(0, 4095)), "text?");
  EXPECT_EQ(kind(book.substr(0, 50'000) + '\0' + book), "tokens") << "of 64 KiB all are looked at";
  EXPECT_EQ(kind(book.substr(0, 70'000) + '\0' + book), "text");
  for (const char gone : {' ', '\n'}) {
    std::string without = book;
    std::replace(without.begin(), without.end(), gone, '_');
    EXPECT_EQ(kind(without), "text?") << "ids from 0x2020 to 0x7E7E can be that";
  }
  for (const std::string& bytes : {kLines, kProse, book, std::string("PAR1 columns")}) {
    EXPECT_EQ(kind(bytes, "uint8"), "tokens") << "bytes are tokens there";
  }
}

TEST_F(KindOfFile, IsTokensWhereIdsCanBeThat) {
  EXPECT_EQ(kind("{\"a\": 1}"), "tokens") << "too few bytes to say";
  EXPECT_EQ(kind(std::string("\x1F\x8B\x08\0\0\0\0\0\x07\x55", 10) + "some more bytes"), "tokens")
      << "no gzip has these";
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 5000; ++i) ids.push_back(i * 7919 % 50'000);
  ids[0] = 0x227B;  // {"
  write_ids<uint16_t>(file_, ids);
  EXPECT_FALSE(kind_of_no_tokens(file_, "uint16"));
  write_ids<uint16_t>(file_, std::vector<int64_t>(kProse.begin(), kProse.end()));
  EXPECT_FALSE(kind_of_no_tokens(file_, "uint16")) << "bytes of a text as ids";
  EXPECT_FALSE(kind_of_no_tokens(scratch_.path() / "none", "uint16"));
  EXPECT_FALSE(kind_of_no_tokens(scratch_.path(), "uint16"));
}

TEST_F(KindOfFile, IsRefusedOrWarnedAboutWithoutASidecar) {
  EXPECT_EQ(refusal(kLines),
            "r.yaml:3:5: data.tokens: " + file_.string() +
                " looks like JSON Lines text, not token ids: make tokens from it with meshtrain data prepare --text " +
                file_.string());
  EXPECT_EQ(refusal(kLines, "uint8"), "");
  std::string book;
  while (book.size() < 8192) book += kProse;
  EXPECT_EQ(refusal(book),
            "r.yaml:3:5: data.tokens: " + file_.string() +
                " looks like text, not token ids: make tokens from it with meshtrain data prepare --text " +
                file_.string());
  EXPECT_EQ(refusal(book, "uint8"), "");
  EXPECT_EQ(refusal(kProse), "");
  SourceOptions source;
  source.tokens = file_;
  source.dtype = "uint16";
  EXPECT_EQ(dtype_warning(source, "data").text(), "data.tokens: " + file_.string() +
                                                      " is read as uint16, but looks like text, not token ids: make "
                                                      "tokens from it with meshtrain data prepare --text " +
                                                      file_.string() + " if it is");
  source.dtype = "uint8";
  EXPECT_EQ(dtype_warning(source, "data").text(), "");
  TokenSidecar sidecar;
  sidecar.dtype = "uint16";
  sidecar.tokens = static_cast<int64_t>(kLines.size() / 2);
  write_sidecar(file_, sidecar);
  EXPECT_FALSE(has(refusal(kLines), "looks like")) << "its sidecar knows";
}

TEST_F(KindOfFile, IsNamedWhereIdsAreBeyondTheVocabulary) {
  SourceOptions source;
  source.tokens = file_;
  source.dtype = "uint16";
  const auto error = [&](const std::string& bytes) {
    write_file(file_, bytes);
    return message<InputError>([&] { Dataset(source, 4, 1000, 1); });
  };
  ASSERT_EQ(kProse.size() % 2, 1U);
  EXPECT_TRUE(
      has(error(kProse), "not a whole number of uint16 tokens: it looks like text, not token ids: make tokens"));
  EXPECT_TRUE(
      has(error(kProse + "\n"), "beyond the vocabulary of 1000: it looks like text, not token ids: make tokens"));
}

}  // namespace
}  // namespace meshtrain::testing
