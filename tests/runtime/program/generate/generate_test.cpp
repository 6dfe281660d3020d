// One rank generates what transformers generates (tests/fixtures, written by generate.py), and with the cache the same
// as without.

#include "runtime/program/generate/continuation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "runtime/program/generate/generation_config.h"
#include "runtime/program/generate/model_source.h"
#include "runtime/program/generate/prompts.h"
#include "tests/runtime/program/generate/one_text.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

fs::path fixture(const std::string& name) {
  return source_folder() + "/tests/fixtures/" + name;
}

nlohmann::json read_json(const fs::path& file) {
  return nlohmann::json::parse(std::ifstream(file));
}

/// A fixture's model on this rank.
struct Loaded {
  explicit Loaded(const std::string& name, at::ScalarType dtype = at::kFloat)
      : source(read_model_source(find_model(fixture(name)))),
        weights(source),
        mesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group()),
        model(source.shape, mesh, {.dtype = dtype}, [&](const Parameter& parameter) { weights.read(parameter); }) {}

  ModelSource source;
  ModelWeights weights;
  DeviceMesh mesh;
  LanguageModel model;
};

/// Returns some tokens of fixtures.
std::vector<int64_t> some_ids(int64_t count, int64_t seed = 1) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back((seed + 31 * i + 7 * i * i) % 97);
  return ids;
}

class Generate : public ::testing::TestWithParam<const char*> {};

TEST_P(Generate, GreedyTokensAreThoseOfTransformers) {
  Loaded loaded(GetParam());
  const nlohmann::json all = read_json(fixture(GetParam()) / "generated.json");
  ASSERT_EQ(all.size(), 3u);
  for (const nlohmann::json& each : all) {
    const std::vector<int64_t> prompt = each.at("prompt"), wanted = each.at("tokens");
    ASSERT_GE(wanted.size(), 64u);
    for (const int64_t at_once : {512, 5, 1}) {  // the number of prompt tokens computed at once makes no difference
      GenerateOptions options{static_cast<int64_t>(wanted.size()), {}, {}, at_once};
      EXPECT_EQ(one_text(loaded.model, prompt, 0, options).tokens, wanted) << prompt.size() << " " << at_once;
    }
  }
}

TEST_P(Generate, UnderRulesGreedyTokensAreThoseOfTransformers) {
  Loaded loaded(GetParam());
  const nlohmann::json all = read_json(fixture(GetParam()) / "steered.json");
  ASSERT_EQ(all.size(), 8u);
  const ScratchFolder scratch;
  for (const nlohmann::json& each : all) {
    const nlohmann::json& keys = each.at("config");
    std::ofstream(scratch.path() / "generation_config.json") << keys;
    const GenerationConfig config = read_generation_config(scratch.path(), loaded.source.shape.vocab_size);
    const GenerateOptions options{.max_tokens = config.max_new_tokens.value(),
                                  .stop = keys.value("eos_token_id", std::vector<int64_t>()),
                                  .sampling = config.sampling,
                                  .rules = config.rules};
    const std::vector<int64_t> prompt = each.at("prompt"), wanted = each.at("tokens");
    EXPECT_EQ(one_text(loaded.model, prompt, 0, options).tokens, wanted) << keys;
  }
}

TEST_P(Generate, WithTheCacheLogitsAreThoseWithout) {
  Loaded loaded(GetParam(), at::kDouble);
  constexpr int64_t kLength = 24, kPrompt = 9;
  const std::vector<int64_t> ids = some_ids(kLength);
  KeyValueCache cache = loaded.model.make_cache(kLength);
  std::vector<int64_t> next(ids.begin(), ids.begin() + kPrompt);
  for (int64_t length = kPrompt; length <= kLength; ++length) {
    const at::Tensor cached = loaded.model.next(next, cache).full();
    EXPECT_EQ(cache.length(), length);
    // Computes everything again with the attention used in training.
    const at::Tensor before = at::tensor(std::vector<int64_t>(ids.begin(), ids.begin() + length), at::kLong);
    const Sequence sequence{SequenceLayout::unsharded(length),
                            make_rotary(loaded.source.shape, at::arange(length), at::kDouble, at::kCPU),
                            make_local_rotary(loaded.source.shape, at::arange(length), at::kDouble, at::kCPU)};
    const at::Tensor wanted = loaded.model.model().next_logits(before, sequence).full();
    EXPECT_LE((cached - wanted).abs().max().item<double>(), 1e-10 * wanted.abs().max().item<double>()) << length;
    if (length < kLength) next = {ids[static_cast<size_t>(length)]};
  }
}

INSTANTIATE_TEST_SUITE_P(All, Generate,
                         ::testing::Values("llama", "llama_gqa_tied", "llama3_rope", "llama_linear", "llama_yarn",
                                           "llama_bias", "mistral", "qwen2", "qwen3", "smollm3", "granite", "phi3",
                                           "olmo2", "olmo3", "mistral_window", "qwen2_window", "gemma2", "gemma3",
                                           "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe",
                                           "granitemoeshared", "dots1", "glm4_moe", "gpt_oss"));

TEST(GenerateOne, APromptInPiecesOfAnySizeIsTheSame) {
  Loaded loaded("qwen3", at::kDouble);
  const std::vector<int64_t> prompt = some_ids(23);
  const auto logits = [&](int64_t at_once) {
    KeyValueCache cache = loaded.model.make_cache(23);
    std::optional<VocabularyLogits> last;
    for (auto next = prompt.begin(); next != prompt.end();) {
      const auto end = next + std::min(at_once, prompt.end() - next);
      last = loaded.model.next({next, end}, cache);
      next = end;
    }
    return last->full();
  };
  const at::Tensor wanted = logits(23);
  for (const int64_t at_once : {1, 2, 7, 22}) {
    EXPECT_LE((logits(at_once) - wanted).abs().max().item<double>(), 1e-10 * wanted.abs().max().item<double>());
  }
}

TEST(GenerateOne, TheCacheIsAsLargeAsItsFormulaAndNothingElseGrows) {
  Loaded loaded("qwen3");
  HostMemory& memory = HostMemory::counted();
  const ModelShape& shape = loaded.source.shape;
  const int64_t position = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 4;
  const int64_t before = memory.live();
  KeyValueCache cache = loaded.model.make_cache(100);
  EXPECT_EQ(memory.live() - before, 100 * position);
  EXPECT_EQ(cache.capacity(), 100);
  loaded.model.next(some_ids(9), cache);
  const int64_t after_prompt = memory.live();
  for (int64_t i = 9; i < 100; ++i) loaded.model.next({i % 97}, cache);
  EXPECT_EQ(memory.live(), after_prompt) << "a token leaves nothing behind but what has its place in the cache";
  EXPECT_THROW(loaded.model.next({1}, cache), std::logic_error);
}

TEST(GenerateOne, MemoryOfALongPromptIsThatOfAPiece) {
  Loaded loaded("llama");
  HostMemory& memory = HostMemory::counted();
  const auto peak = [&](int64_t length) {
    memory.restart_peak();
    const int64_t before = memory.live();
    one_text(loaded.model, some_ids(length), 0, {1, {}, {}, 16});
    const int64_t most = memory.peak(), after = memory.live();
    const KeyValueCache cache = loaded.model.make_cache(length);
    return most - before - (memory.live() - after);
  };
  const int64_t some = peak(1024);  // the attention's scores cover at most 512 keys
  EXPECT_LE(peak(4096), some + some / 20);
}

TEST(GenerateOne, EndsAtAStopTokenOrWhenThereAreEnough) {
  Loaded loaded("llama");
  const nlohmann::json each = read_json(fixture("llama") / "generated.json")[1];
  const std::vector<int64_t> prompt = each.at("prompt"), all = each.at("tokens");
  const int64_t stop = all[7];
  const auto first = std::find(all.begin(), all.end(), stop);
  std::vector<int64_t> seen;
  const OneText stopped =
      one_text(loaded.model, prompt, 0, {96, {1000, stop}, {}}, [&](int64_t token) { seen.push_back(token); });
  EXPECT_EQ(stopped.end, TextEnd::Token);
  EXPECT_EQ(stopped.tokens, std::vector<int64_t>(all.begin(), first + 1)) << "the one that ends it included";
  EXPECT_EQ(seen, stopped.tokens);
  const OneText enough = one_text(loaded.model, prompt, 0, {3, {}, {}});
  EXPECT_EQ(enough.end, TextEnd::Length);
  EXPECT_EQ(enough.tokens, std::vector<int64_t>(all.begin(), all.begin() + 3));
}

TEST(GenerateOne, EndsWhereItIsToldTo) {
  Loaded loaded("llama");
  const nlohmann::json each = read_json(fixture("llama") / "generated.json")[1];
  const std::vector<int64_t> prompt = each.at("prompt"), all = each.at("tokens");
  std::vector<int64_t> asked;
  GenerateOptions options;
  options.ends_text = [&](int64_t token) {
    asked.push_back(token);
    return asked.size() == 5;
  };
  const OneText generated = one_text(loaded.model, prompt, 0, options);
  EXPECT_EQ(generated.end, TextEnd::Text);
  EXPECT_EQ(generated.tokens, std::vector<int64_t>(all.begin(), all.begin() + 5)) << "the one that ends it included";
  EXPECT_EQ(asked, generated.tokens);
}

TEST(GenerateOne, RulesThatLeaveNoTokenAreNamed) {
  Loaded loaded("llama");
  GenerateOptions options;
  for (int64_t id = 0; id < loaded.source.shape.vocab_size; ++id) options.rules.bad_words_ids.push_back({id});
  const std::string error = message<AgreedError>([&] { one_text(loaded.model, {5, 6}, 0, options); });
  EXPECT_TRUE(has(error, "no token is left for position 2: ") && has(error, "bad_words_ids")) << error;
}

TEST(GenerateOne, WhatIsDrawnDependsOnSeedAndSequence) {
  Loaded loaded("llama");
  const auto drawn = [&](uint64_t seed, uint64_t sequence, double temperature) {
    return one_text(loaded.model, {5, 6}, sequence, {40, {}, {temperature, 0, 1, seed}}).tokens;
  };
  EXPECT_EQ(drawn(1, 0, 1), drawn(1, 0, 1));
  EXPECT_NE(drawn(1, 0, 1), drawn(2, 0, 1));
  EXPECT_NE(drawn(1, 0, 1), drawn(1, 1, 1));
  EXPECT_EQ(drawn(1, 0, 1e-6), drawn(2, 0, 0)) << "cold enough it is greedy";
  const auto narrow = one_text(loaded.model, {5, 6}, 0, {40, {}, {5, 1, 1, 3}}).tokens;
  EXPECT_EQ(narrow, drawn(0, 0, 0)) << "one of one is greedy";
}

TEST(GenerateOne, LogitsThatAreNotFiniteEndIt) {
  Loaded loaded("llama");
  loaded.model.model().fsdp().write_values(
      [](const Parameter& parameter) { parameter.tensor.detach().fill_(std::numeric_limits<float>::quiet_NaN()); });
  for (const double temperature : {0.0, 1.0}) {
    try {
      one_text(loaded.model, {5, 6}, 0, {4, {}, {temperature, 0, 1, 0}});
      FAIL();
    } catch (const AgreedError& error) {
      EXPECT_NE(std::string(error.what()).find("logits of position 2 are not finite"), std::string::npos);
    }
  }
}

template <class Action>
std::string input_error(Action action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was wrong";
}

void write(const fs::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

TEST(StopTokens, AreThoseOfTheFirstFileThatNamesOne) {
  const ScratchFolder scratch;
  ModelSource source;
  source.hugging_face = scratch.path();
  EXPECT_TRUE(stop_tokens(source, nullptr).empty());
  source.document_end = 4;
  EXPECT_EQ(stop_tokens(source, nullptr), (std::vector<int64_t>{4}));
  write(scratch.path() / "config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(stop_tokens(source, nullptr), (std::vector<int64_t>{7}));
  write(scratch.path() / "generation_config.json", R"({"eos_token_id": [3, 5]})");
  EXPECT_EQ(stop_tokens(source, nullptr), (std::vector<int64_t>{3, 5}));
  write(scratch.path() / "generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(stop_tokens(source, nullptr), (std::vector<int64_t>{7}));
  write(scratch.path() / "generation_config.json", R"({"eos_token_id": ["x"]})");
  EXPECT_TRUE(has(input_error([&] { stop_tokens(source, nullptr); }), "generation_config.json: eos_token_id[0]"));
}

TEST(FindModel, SaysWhatAModelIs) {
  const ScratchFolder scratch;
  EXPECT_TRUE(
      has(input_error([&] { find_model(scratch.path()); }), "there is no config.json in " + scratch.path().string()));
  EXPECT_TRUE(has(input_error([&] { find_model(scratch.path() / "nowhere"); }), "there is no folder "));
}

TEST(Prompts, AreReadFromLinesAndJson) {
  const ScratchFolder scratch;
  const fs::path lines = scratch.path() / "prompts.txt", json = scratch.path() / "prompts.jsonl";
  write(lines, "one\r\n\n  two \nthree");
  std::vector<std::string> texts;
  for (const Prompt& prompt : read_prompts(lines)) texts.push_back(prompt.text);
  EXPECT_EQ(texts, (std::vector<std::string>{"one", "  two ", "three"}));
  write(json, "\"a\\nb\"\n{\"prompt\": \"c\", \"id\": 4}\n\n{\"tokens\": [1, 2]}\n");
  const std::vector<Prompt> prompts = read_prompts(json);
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].text, "a\nb");
  EXPECT_EQ(prompts[1].text, "c");
  EXPECT_FALSE(prompts[2].is_text);
  EXPECT_EQ(prompts[2].tokens, (std::vector<int64_t>{1, 2}));
  for (const char* bad : {"{", "5", "{}", "{\"prompt\": 5}", "{\"tokens\": [-1]}", "{\"tokens\": 1}", "[1]",
                          "{\"tokens\": []}", "{\"prompt\": \"\", \"tokens\": [1]}"}) {
    write(json, std::string("\"fine\"\n") + bad + "\n");
    EXPECT_TRUE(has(input_error([&] { read_prompts(json); }), json.string() + ":2: ")) << bad;
  }
  write(json, "{\"tokens\": " + std::string(300'000, '[') + std::string(300'000, ']') + "}");
  EXPECT_EQ(input_error([&] { read_prompts(json); }),
            json.string() + ":1 is not read: its values are nested more than 200 levels deep");
  EXPECT_TRUE(has(input_error([&] { read_prompts(scratch.path() / "none"); }), "none"));
}

TEST(Prompts, OfTokensAreListsOfIds) {
  EXPECT_EQ(parse_token_prompt("1,22,333", "--tokens").tokens, (std::vector<int64_t>{1, 22, 333}));
  for (const char* bad : {"", "1,", ",1", "1 2", "a", "-1", "1,,2", "99999999999"}) {
    EXPECT_TRUE(has(input_error([&] { parse_token_prompt(bad, "--tokens"); }), "--tokens: \"" + std::string(bad)));
  }
}

TEST(Prompts, AreEncodedWithinTheVocabulary) {
  const auto bytes = load_tokenizer("bytes");
  EXPECT_EQ(encode_prompt({"ab"}, bytes.get(), 256, "prompt 1"), (std::vector<int64_t>{97, 98}));
  EXPECT_TRUE(has(input_error([&] { encode_prompt({"ab"}, bytes.get(), 98, "prompt 1"); }),
                  "prompt 1 has token 98, the model's vocabulary has 98"));
  EXPECT_TRUE(has(input_error([&] { encode_prompt({"ab"}, nullptr, 98, "prompt 1"); }), "give --tokenizer"));
  EXPECT_TRUE(has(input_error([&] { encode_prompt({""}, bytes.get(), 98, "prompt 2"); }), "prompt 2 is empty"));
  const auto llama3 = load_tokenizer(source_folder() + "/tests/tokenizer/fixtures/llama3");
  const std::vector<int64_t> begun = encode_prompt({""}, llama3.get(), 1 << 20, "prompt 1");
  EXPECT_EQ(begun.size(), 1u) << "the token that begins a text, once";
}

}  // namespace
}  // namespace meshtrain::testing
