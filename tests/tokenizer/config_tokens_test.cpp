#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "runtime/text/tokenizer/config_tokens.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/tokenizer/fixtures.h"

namespace meshtrain {
namespace {

using Ordered = nlohmann::ordered_json;  // the order of keys decides on ids
using testing::content;
using testing::fixture;
using testing::has;
using testing::message;
using testing::ScratchFolder;
using testing::write_file;

const Ordered& beside_fixture() {
  static const Ordered document = Ordered::parse(content(fixture("beside.json")));
  return document;
}

void write_case(const ScratchFolder& folder, const Ordered& one) {
  Ordered tokenizer = beside_fixture()["tokenizer"];
  tokenizer["added_tokens"] = one.value("added", Ordered::array());
  if (one.contains("normalizer")) tokenizer["normalizer"] = one["normalizer"];
  if (one.contains("padding")) tokenizer["padding"] = {{"pad_token", one["padding"]}};
  write_file(folder.path() / "tokenizer.json", tokenizer.dump());
  for (const auto& [key, file] : {std::pair("config", "tokenizer_config.json"), std::pair("ids", "added_tokens.json"),
                                  std::pair("map", "special_tokens_map.json")}) {
    if (one.contains(key)) write_file(folder.path() / file, one[key].dump());
  }
}

std::string shown(const Ordered& one) {
  Ordered files = one;
  for (const char* key : {"texts", "named", "bos", "eos"}) files.erase(key);
  return files.dump();
}

TEST(ConfigTokens, GiveTheIdsOfTransformers) {
  ASSERT_GT(beside_fixture()["cases"].size(), 50U);
  for (const Ordered& one : beside_fixture()["cases"]) {
    const ScratchFolder folder;
    write_case(folder, one);
    if (one.contains("error")) {
      EXPECT_TRUE(has(message<InputError>([&] { load_tokenizer(folder.path()); }), ".json: ")) << shown(one);
      continue;
    }
    const auto tokenizer = load_tokenizer(folder.path());
    for (const Ordered& text : one["texts"]) {
      const std::vector<int64_t> ids = tokenizer->ids(text[0].get<std::string>());
      EXPECT_EQ(Ordered(ids), text[1]) << shown(one) << ": " << text[0];
      EXPECT_EQ(tokenizer->decode(ids), text[2].get<std::string>()) << shown(one);
      EXPECT_EQ(tokenizer->decode(ids, true), text[3].get<std::string>()) << shown(one);
    }
    EXPECT_EQ(tokenizer->bos() ? Ordered(*tokenizer->bos()) : Ordered(), one["bos"]) << shown(one);
    EXPECT_EQ(tokenizer->eos() ? Ordered(*tokenizer->eos()) : Ordered(), one["eos"]) << shown(one);
    if (one.contains("padding")) continue;  // of tokenizer.json, which names are not read from
    Ordered named = Ordered::object();
    for (const auto& [name, token] : read_config_tokens(folder.path(), nullptr).named)
      named[name] = token.token.content;
    EXPECT_EQ(named.size(), one["named"].size()) << shown(one);
    for (const auto& [name, text] : one["named"].items()) EXPECT_EQ(named.value(name, Ordered()), text) << shown(one);
  }
}

TEST(ConfigTokens, AreReadBesideAFileThatIsNamed) {
  const ScratchFolder folder;
  write_case(folder, {{"config", {{"eos_token", "<new>"}}}});
  EXPECT_EQ(load_tokenizer(folder.path() / "tokenizer.json")->eos(), 259);
}

TEST(ConfigTokens, AreRefusedByTheirLocation) {
  const auto refusal = [](const Ordered& one) {
    const ScratchFolder folder;
    write_case(folder, one);
    return message<InputError>([&] { load_tokenizer(folder.path()); });
  };
  EXPECT_TRUE(
      has(refusal({{"config", {{"eos_token", {{"text", "a"}}}}}}), "tokenizer_config.json: eos_token has no content"));
  EXPECT_TRUE(
      has(refusal({{"config", {{"eos_token", 3}}}}),
          "tokenizer_config.json: eos_token is neither the text of a token nor an object with its \"content\""));
  EXPECT_TRUE(has(refusal({{"map", {{"additional_special_tokens", {"a", 3}}}}}),
                  "special_tokens_map.json: additional_special_tokens[1] is neither"));
  EXPECT_TRUE(has(refusal({{"ids", {{"a", "b"}}}}), "added_tokens.json: a is \"b\", not a token id"));
  EXPECT_TRUE(has(refusal({{"config", {{"added_tokens_decoder", {{"-1", {{"content", "a"}}}}}}}}),
                  "tokenizer_config.json: added_tokens_decoder.-1 must be named by a token id"));
  EXPECT_TRUE(
      has(refusal({{"config", {{"split_special_tokens", true}}}}), "split_special_tokens is true, which is not"));
}

TEST(ConfigTokens, CountForTheFingerprintWhereTheyChangeIds) {
  const Ordered own = {{{"id", 259},
                        {"content", "<a>"},
                        {"single_word", false},
                        {"lstrip", false},
                        {"rstrip", false},
                        {"normalized", false},
                        {"special", true}}};
  const auto fingerprint = [&](const Ordered& config) {
    const ScratchFolder folder;
    write_case(folder, {{"added", own}, {"config", config}});
    return tokenizer_fingerprint(folder.path());
  };
  const std::string plain = fingerprint(Ordered::object());
  EXPECT_EQ(fingerprint({{"eos_token", "<a>"}, {"chat_template", "x"}}), plain);
  EXPECT_NE(fingerprint({{"eos_token", "<b>"}}), plain);
  EXPECT_NE(fingerprint({{"eos_token", "<b>"}}), fingerprint({{"eos_token", "<c>"}}));
  EXPECT_NE(
      fingerprint({{"added_tokens_decoder", {{"259", {{"content", "<a>"}, {"special", true}, {"lstrip", true}}}}}}),
      plain);
}

}  // namespace
}  // namespace meshtrain
