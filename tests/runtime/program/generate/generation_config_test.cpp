// Logits under a generation_config.json are those of transformers (tests/fixtures/generation, written by generate.py),
// and what is not applied is named.

#include "runtime/program/generate/generation_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/program/generate/stop_strings.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kVocabulary = 97;

/// A folder with files of configuration.
class GenerationFile : public ::testing::Test {
 protected:
  GenerationConfig read(const json& keys, const std::string& name = "generation_config.json") const {
    write_file(scratch_.path() / name, keys.dump());
    return read_generation_config(scratch_.path(), kVocabulary);
  }
  std::string line(const json& keys, const std::vector<std::string>& overridden = {}) const {
    const std::string text = describe(read(keys), overridden), file = this->file("generation_config.json") + ": ";
    return text.starts_with(file) ? text.substr(file.size()) : text;
  }
  std::string complaint(const json& keys) const {
    return message<InputError>([&] { read(keys); });
  }
  std::string file(const std::string& name) const { return scratch_.path() / name; }

  ScratchFolder scratch_;
};

/// Returns the probabilities of the tokens that may be drawn, 0 for others.
std::vector<double> probabilities(const std::vector<Candidate>& left, size_t size) {
  std::vector<double> result(size, 0);
  double sum = 0;
  for (const Candidate& each : left) sum += each.weight;
  for (const Candidate& each : left) result[static_cast<size_t>(each.id)] = each.weight / sum;
  return result;
}

TEST_F(GenerationFile, LogitsAreThoseOfTransformers) {
  const fs::path fixture = fs::path(source_folder()) / "tests/fixtures/generation";
  const json cases = json::parse(content(fixture / "cases.json"));
  const SafetensorsFile reference(fixture / "reference.safetensors");
  const at::Tensor ids = reference.read("text");
  const std::vector<int64_t> text(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
  ASSERT_EQ(cases.size(), 21u);
  for (const auto& [name, keys] : cases.items()) {
    const GenerationConfig config = read(keys);
    EXPECT_TRUE(config.not_applied.empty()) << name;
    std::vector<int64_t> stop;
    if (keys.contains("eos_token_id")) {
      const json& eos = keys.at("eos_token_id");
      stop = eos.is_array() ? eos.get<std::vector<int64_t>>() : std::vector<int64_t>{eos.get<int64_t>()};
    }
    std::vector<double> scores = values_of(reference.read("logits"));
    apply(config.rules, text, /*prompt=*/10, stop, scores);
    std::vector<double> wanted = values_of(reference.read(name));
    if (config.sampling.temperature > 0) {
      wanted = values_of(reference.read(name).softmax(0));
      scores = probabilities(candidates(scores, config.sampling), scores.size());
    }
    for (size_t id = 0; id < scores.size(); ++id) {
      if (std::isinf(wanted[id])) {
        EXPECT_EQ(scores[id], wanted[id]) << name << " id " << id;
      } else {
        EXPECT_NEAR(scores[id], wanted[id], 1e-12) << name << " id " << id;
      }
    }
  }
}

TEST_F(GenerationFile, SaysWhatIsAppliedAndWhatIsNot) {
  EXPECT_EQ(line({{"eos_token_id", 2}, {"transformers_version", "5.0"}, {"temperature", 1.0}, {"num_beams", 1}}), "");
  EXPECT_EQ(line({{"do_sample", true}, {"temperature", 0.6}, {"top_p", 0.9}, {"num_beams", 4}, {"future_key", "x"}}),
            "applied do_sample true, temperature 0.6, top_p 0.9; not applied future_key \"x\", num_beams 4");
  EXPECT_EQ(line({{"temperature", 0.6}, {"repetition_penalty", 1.1}}),
            "applied repetition_penalty 1.1; not applied temperature 0.6 (do_sample is not true)");
  EXPECT_EQ(line({{"do_sample", true}, {"temperature", 0.6}, {"top_k", 5}}, {"temperature", "do_sample"}),
            "applied top_k 5");
  EXPECT_EQ(line({{"stop_strings", "END"}, {"max_length", 100}, {"typical_p", 0.9}, {"suppress_tokens", {1}}}),
            "applied max_length 100, stop_strings \"END\"; not applied suppress_tokens [1], typical_p 0.9");
  EXPECT_TRUE(has(line({{"max_new_tokens", 5}, {"min_new_tokens", 3}, {"bad_words_ids", {{1}, {2, 3}}}}),
                  "applied bad_words_ids [[1],[2,3]], max_new_tokens 5, min_new_tokens 3"));
  EXPECT_FALSE(has(line({{"min_length", 40}, {"min_new_tokens", 1}}), "min_length")) << "min_new_tokens goes before";
}

TEST_F(GenerationFile, ImpossibleValuesAreNamed) {
  const std::string path = file("generation_config.json");
  EXPECT_EQ(complaint({{"top_p", 1.5}}), path + ": top_p is 1.5, not a number from 0.0 to 1.0");
  EXPECT_EQ(complaint({{"temperature", 0}, {"do_sample", true}}), path + ": temperature is 0, not a number above zero");
  EXPECT_EQ(complaint({{"top_k", -1}}), path + ": top_k is -1, not a whole number of at least 0");
  for (const json& bad : {json{5}, json{{}}, json::parse("[[97]]"), json::parse("[[-1]]"), json("x")}) {
    EXPECT_TRUE(has(complaint({{"bad_words_ids", bad}}), path + ": bad_words_ids is ")) << bad;
  }
  EXPECT_TRUE(has(complaint({{"stop_strings", json::parse("[\"a\", \"\"]")}}), "stop_strings has \"\""));
  EXPECT_TRUE(has(complaint({{"max_new_tokens", 0}}), "max_new_tokens is 0"));
}

TEST_F(GenerationFile, WithoutItConfigJsonSaysIt) {
  const json keys = {{"hidden_size", 16}, {"repetition_penalty", 1.5}, {"num_beams", 3}};
  const GenerationConfig config = read(keys, "config.json");
  EXPECT_EQ(config.rules.repetition_penalty, 1.5);
  EXPECT_EQ(describe(config, {}), file("config.json") + ": applied repetition_penalty 1.5; not applied num_beams 3");
  EXPECT_EQ(read({{"top_k", 5}}).rules.repetition_penalty, 1) << "one of both counts, as in transformers";
  EXPECT_EQ(describe(read_generation_config("", kVocabulary), {}), "");
}

TEST_F(GenerationFile, DefaultsAreThoseOfTransformers) {
  const GenerationConfig greedy = read(json::object()), drawn = read({{"do_sample", true}});
  EXPECT_EQ(greedy.sampling.temperature, 0);
  EXPECT_EQ(drawn.sampling.temperature, 1);
  EXPECT_EQ(drawn.sampling.top_k, 50);
  EXPECT_EQ(drawn.sampling.top_p, 1);
  EXPECT_FALSE(drawn.rules.any());
}

/// Returns the index of the token of `text` at which one of `strings` ends it; -1: none.
int64_t ending_token(const std::string& tokenizer_name, const std::string& prompt, const std::string& text,
                     const std::vector<std::string>& strings) {
  const auto tokenizer = load_tokenizer(tokenizer_name);
  const std::vector<int64_t> all = tokenizer->ids(prompt + text, false), given = tokenizer->ids(prompt, false);
  EXPECT_TRUE(std::equal(given.begin(), given.end(), all.begin())) << "take another prompt";
  StopStrings search(*tokenizer, strings, given);
  for (size_t i = given.size(); i < all.size(); ++i) {
    const bool found = search.add(all[i]);
    // The text until here has a string that the text before this token has not.
    const auto count = [&](size_t tokens) {
      const std::string decoded = tokenizer->decode({all.begin(), all.begin() + static_cast<int64_t>(tokens)});
      size_t number = 0;
      for (const std::string& each : strings) {
        for (size_t at = decoded.find(each); at != std::string::npos; at = decoded.find(each, at + 1)) ++number;
      }
      return number;
    };
    EXPECT_EQ(found, count(i + 1) > count(i)) << prompt << "|" << text << " token " << i;
    if (found) return static_cast<int64_t>(i - given.size());
  }
  return -1;
}

TEST(StopStrings, EndATextWhereTheyAreComplete) {
  const std::string gpt2 = source_folder() + "/tests/tokenizer/fixtures/gpt2";
  EXPECT_EQ(ending_token("bytes", "", "one two", {"two"}), 6);
  EXPECT_EQ(ending_token("bytes", "one tw", "o", {"two"}), 0) << "begins in the prompt";
  EXPECT_EQ(ending_token("bytes", "one two", " three", {"two"}), -1) << "the prompt does not end a text";
  EXPECT_EQ(ending_token("bytes", "", "aaaab", {"aab"}), 4);
  EXPECT_EQ(ending_token("bytes", "", "one, two", {"three", "e,", "wo"}), 3) << "the first of several";
  EXPECT_EQ(ending_token("bytes", "", "größer", {"ö"}), 3) << "bytes of a character";
  EXPECT_EQ(ending_token("bytes", "", "one", {"four"}), -1);
  EXPECT_GE(ending_token(gpt2, "The", " end of the story, the end of all. And more", {"story, t"}), 3);
  EXPECT_GE(ending_token(gpt2, "The", " largest states are\nAlaska\nTexas", {"Alas"}), 1) << "within a token";
}

TEST(StopStrings, EndATextWhereTransformersEndsIt) {
  const fs::path fixtures = fs::path(source_folder()) / "tests";
  const json cases = json::parse(content(fixtures / "fixtures/generation/stop_strings.json"));
  ASSERT_EQ(cases.size(), 40u);
  for (const json& each : cases) {
    const auto tokenizer = load_tokenizer(fixtures / "tokenizer/fixtures" / each.at("tokenizer").get<std::string>());
    StopStrings search(*tokenizer, each.at("strings"), each.at("prompt"));
    json end;
    for (size_t i = 0; end.is_null() && i < each.at("tokens").size(); ++i) {
      if (search.add(each.at("tokens")[i])) end = i + 1;
    }
    EXPECT_EQ(end, each.at("end")) << each.at("tokenizer") << each.at("strings");
  }
}

TEST(StopStrings, SpecialTokensHaveTheirText) {
  const auto llama3 = load_tokenizer(source_folder() + "/tests/tokenizer/fixtures/llama3");
  const SpecialToken special = llama3->special_tokens().front();
  StopStrings search(*llama3, {special.text}, {});
  EXPECT_FALSE(search.add(llama3->ids("a", false).front()));
  EXPECT_TRUE(search.add(special.id));
}

}  // namespace
}  // namespace meshtrain::testing
