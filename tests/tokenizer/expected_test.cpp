#include <gtest/gtest.h>

#include <thread>

#include "mesh/base/files/checksum.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/scratch.h"
#include "tests/tokenizer/fixtures.h"

namespace meshtrain {
namespace {

using testing::corpus;
using testing::fixture;
using testing::Reader;

struct Expected {
  std::vector<int64_t> ids;
  std::string decoded;
};

std::vector<Expected> expected_of(const std::string& name, const std::vector<std::string>& texts) {
  std::vector<Expected> all;
  Reader reader(fixture(name) / "expected.bin");
  for (const std::string& text : texts) {
    Expected& expected = all.emplace_back();
    expected.ids.resize(reader.number<uint32_t>());
    for (int64_t& id : expected.ids) id = reader.number<uint16_t>();
    const auto size = reader.number<uint32_t>();
    expected.decoded = size == 0xFFFFFFFF ? with_replacements(text) : reader.text(size);
  }
  EXPECT_TRUE(reader.done()) << name;
  return all;
}

class Fixture : public ::testing::TestWithParam<std::string> {};

TEST_P(Fixture, GivesTheIdsOfThePackage) {
  const auto tokenizer = load_tokenizer(fixture(GetParam()));
  const std::vector<std::string> texts = corpus();
  ASSERT_GT(texts.size(), 300U);
  const std::vector<Expected> expected = expected_of(GetParam(), texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<int64_t> ids = tokenizer->ids(texts[i]);
    EXPECT_EQ(ids, expected[i].ids) << "text " << i << ": " << texts[i].substr(0, 200);
    EXPECT_EQ(with_replacements(tokenizer->decode(ids)), expected[i].decoded) << "text " << i;
    for (const int64_t id : ids) EXPECT_LT(id, tokenizer->vocabulary_size());
  }
}

TEST_P(Fixture, ServesThreadsAtTheSameTime) {
  const auto tokenizer = load_tokenizer(fixture(GetParam()));
  const std::vector<std::string> texts = corpus();
  const std::vector<Expected> expected = expected_of(GetParam(), texts);
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < wrong.size(); ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t k = 0; k < texts.size(); ++k) {
        const size_t i = (k * 7 + thread * 50) % texts.size();
        wrong[thread] += tokenizer->ids(texts[i]) != expected[i].ids;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

INSTANTIATE_TEST_SUITE_P(All, Fixture,
                         ::testing::Values("gpt2", "llama3", "smollm2", "qwen", "flags", "merged", "sentencepiece"),
                         [](const auto& instance) { return instance.param; });

TEST(HuggingFace, KnowsSpecialTokens) {
  const auto llama = load_tokenizer(fixture("llama3") / "tokenizer.json");
  ASSERT_EQ(llama->special_tokens().size(), 3U);
  EXPECT_EQ(llama->bos(), llama->token_id("<|begin_of_text|>"));
  EXPECT_EQ(llama->eos(), llama->token_id("<|end_of_text|>"));
  EXPECT_EQ(llama->special_tokens()[2].text, "<|eot_id|>");
  EXPECT_EQ(llama->vocabulary_size(), llama->special_tokens()[2].id + 1);
  EXPECT_EQ(llama->token_id("nothing like it"), std::nullopt);
  EXPECT_EQ(llama->ids("").size(), 1U);
  EXPECT_EQ(llama->ids("", false).size(), 0U);
  const std::vector<int64_t> ids = llama->ids("a<|eot_id|>b");
  EXPECT_EQ(llama->decode(ids), "<|begin_of_text|>a<|eot_id|>b");
  EXPECT_EQ(llama->decode(ids, true), "ab");
  EXPECT_EQ(llama->decode({-1, 1'000'000, *llama->eos()}), "<|end_of_text|>") << "ids that it does not know";
}

TEST(HuggingFace, TakesEndsFromTheModelsConfiguration) {
  const testing::ScratchFolder scratch;
  std::filesystem::copy(fixture("gpt2") / "tokenizer.json", scratch.path() / "tokenizer.json");
  EXPECT_EQ(load_tokenizer(scratch.path())->eos(), std::nullopt);
  testing::write_file(scratch.path() / "config.json", R"({"bos_token_id": 3, "eos_token_id": [5, 6]})");
  EXPECT_EQ(load_tokenizer(scratch.path())->bos(), 3);
  EXPECT_EQ(load_tokenizer(scratch.path())->eos(), 5);
  testing::write_file(scratch.path() / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  EXPECT_EQ(load_tokenizer(scratch.path())->bos(), 3);
  EXPECT_EQ(load_tokenizer(scratch.path())->eos(), load_tokenizer(scratch.path())->token_id("<|endoftext|>"));
}

TEST(HuggingFace, TakesTimeInProportionToAWord) {
  const auto tokenizer = load_tokenizer(fixture("gpt2"));
  std::string word;
  uint32_t state = 1;
  for (int i = 0; i < 1'000'000; ++i) word += static_cast<char>('a' + (state = state * 1664525 + 1013904223) % 26);
  const std::vector<int64_t> ids = tokenizer->ids(word);  // more than a minute if each merge searched every pair
  EXPECT_EQ(tokenizer->decode(ids), word);
  EXPECT_LT(ids.size(), word.size());
}

TEST(SentencePiece, BeginsTextsWhereItIsConfigured) {
  const auto tokenizer = load_tokenizer(fixture("sentencepiece"));
  EXPECT_EQ(tokenizer->bos(), tokenizer->token_id("<s>"));
  EXPECT_EQ(tokenizer->eos(), tokenizer->token_id("</s>"));
  EXPECT_EQ(tokenizer->ids("x").front(), *tokenizer->bos());
  EXPECT_NE(tokenizer->ids("x", false).front(), *tokenizer->bos());
  EXPECT_EQ(tokenizer->token_id("nothing like it"), std::nullopt);
}

TEST(Bytes, KeepsEveryByte) {
  const auto tokenizer = load_tokenizer("bytes");
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const std::vector<int64_t> ids = tokenizer->ids(text);
  ASSERT_EQ(ids.size(), 256U);
  for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<size_t>(i)], i);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(tokenizer->vocabulary_size(), 256);
  EXPECT_EQ(tokenizer->eos(), std::nullopt);
}

TEST(TokenizerFingerprint, IsTheChecksumOfTheFileWhereverItLies) {
  const testing::ScratchFolder scratch;
  const std::string text = testing::content(fixture("gpt2") / "tokenizer.json");
  testing::write_file(scratch.path() / "tokenizer.json", text);
  EXPECT_EQ(tokenizer_fingerprint(scratch.path()), checksum_text(checksum(text.data(), text.size())));
  EXPECT_EQ(tokenizer_fingerprint(scratch.path()), tokenizer_fingerprint(fixture("gpt2")));
  testing::write_file(scratch.path() / "tokenizer.json", text + " ");
  EXPECT_NE(tokenizer_fingerprint(scratch.path()), tokenizer_fingerprint(fixture("gpt2")));
  EXPECT_EQ(tokenizer_fingerprint("bytes"), "bytes");
}

}  // namespace
}  // namespace meshtrain
