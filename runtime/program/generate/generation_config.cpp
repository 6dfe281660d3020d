#include "runtime/program/generate/generation_config.h"

#include <nlohmann/json.hpp>
#include <set>

#include "mesh/base/error.h"
#include "runtime/program/hf/config_reader.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Keys of generation that are not applied, with the value that changes nothing; null: every value changes something.
const std::map<std::string, json>& others() {
  static const std::map<std::string, json> all = {
      {"assistant_early_exit", nullptr},
      {"begin_suppress_tokens", nullptr},
      {"constraints", nullptr},
      {"diversity_penalty", 0},
      {"dola_layers", nullptr},
      {"encoder_no_repeat_ngram_size", 0},
      {"encoder_repetition_penalty", 1},
      {"epsilon_cutoff", 0},
      {"eta_cutoff", 0},
      {"exponential_decay_length_penalty", nullptr},
      {"force_words_ids", nullptr},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"guidance_scale", 1},
      {"max_time", nullptr},
      {"num_beam_groups", 1},
      {"num_beams", 1},
      {"num_return_sequences", 1},
      {"penalty_alpha", 0},
      {"prompt_lookup_num_tokens", nullptr},
      {"remove_invalid_values", false},
      {"sequence_bias", nullptr},
      {"suppress_tokens", nullptr},
      {"token_healing", false},
      {"top_h", nullptr},
      {"typical_p", 1},
      {"use_mtp", false},
      {"watermarking_config", nullptr},
  };
  return all;
}

/// Keys of generation_config.json that do not change which tokens one sequence has, and eos_token_id, which
/// stop_tokens() reads.
const std::set<std::string>& without_effect() {
  static const std::set<std::string> all = {"_commit_hash",
                                            "_from_model_config",
                                            "assistant_confidence_threshold",
                                            "assistant_lookbehind",
                                            "bos_token_id",
                                            "cache_config",
                                            "cache_implementation",
                                            "compile_config",
                                            "decoder_start_token_id",
                                            "disable_compile",
                                            "early_stopping",
                                            "eos_token_id",
                                            "is_assistant",
                                            "length_penalty",
                                            "low_memory",
                                            "max_cache_len",
                                            "max_matching_ngram_size",
                                            "num_assistant_tokens",
                                            "num_assistant_tokens_schedule",
                                            "output_attentions",
                                            "output_hidden_states",
                                            "output_logits",
                                            "output_scores",
                                            "pad_token_id",
                                            "prefill_chunk_size",
                                            "renormalize_logits",
                                            "return_dict_in_generate",
                                            "target_lookbehind",
                                            "transformers_version",
                                            "use_cache"};
  return all;
}

/// A reader of one file, which notes what it finds.
class GenerationConfigReader {
 public:
  GenerationConfigReader(const fs::path& file, int64_t vocab_size) : reader_(file), vocab_size_(vocab_size) {
    config_.file = file;
  }

  GenerationConfig config(bool all_keys) {
    read_sampling();
    read_rules();
    read_lengths();
    for (const auto& [key, neutral] : others()) {
      if (!reader_.has(key)) continue;
      const json& value = reader_.value(key);
      if (value != neutral) config_.not_applied[key] = shown(value);
    }
    for (const std::string& key : without_effect()) reader_.ignore(key);
    if (!all_keys) return std::move(config_);
    for (const std::string& key : reader_.unread()) config_.not_applied[key] = shown(reader_.value(key));
    return std::move(config_);
  }

 private:
  /// Notes a key that changes something.
  void note(const std::string& key) { config_.applied[key] = shown(reader_.value(key)); }

  double number(const std::string& key, double absent, double least, double most) {
    if (!reader_.has(key)) return absent;
    const json& found = reader_.value(key);
    if (!found.is_number() || !(found.get<double>() >= least && found.get<double>() <= most)) {
      reader_.fail(key,
                   "is " + shown(found) + ", not a number from " + json(least).dump() + " to " + json(most).dump());
    }
    return found.get<double>();
  }

  void read_sampling() {
    SamplingOptions& sampling = config_.sampling;
    const bool drawn = reader_.boolean_or("do_sample", false);
    const double temperature = reader_.number_or("temperature", 1);
    sampling.top_k = reader_.integer_or("top_k", sampling.top_k, 0);
    sampling.top_p = number("top_p", 1, 0, 1);
    sampling.min_p = number("min_p", 0, 0, 1);
    sampling.temperature = drawn ? temperature : 0;
    if (drawn) note("do_sample");
    const std::map<std::string, bool> narrows = {{"temperature", temperature != 1},
                                                 {"top_k", reader_.has("top_k")},
                                                 {"top_p", sampling.top_p < 1},
                                                 {"min_p", sampling.min_p > 0}};
    for (const auto& [key, changes] : narrows) {
      if (changes && drawn) note(key);
      if (changes && !drawn) config_.not_applied[key] = shown(reader_.value(key)) + " (do_sample is not true)";
    }
  }

  void read_rules() {
    TokenRules& rules = config_.rules;
    rules.repetition_penalty = reader_.number_or("repetition_penalty", 1);
    rules.no_repeat_ngram_size = reader_.integer_or("no_repeat_ngram_size", 0, 0);
    rules.bad_words_ids = bad_words();
    config_.stop_strings = stop_strings();
    if (rules.repetition_penalty != 1) note("repetition_penalty");
    if (rules.no_repeat_ngram_size > 0) note("no_repeat_ngram_size");
    if (!rules.bad_words_ids.empty()) note("bad_words_ids");
    if (!config_.stop_strings.empty()) note("stop_strings");
  }

  std::vector<std::vector<int64_t>> bad_words() {
    if (!reader_.has("bad_words_ids")) return {};
    const json& found = reader_.value("bad_words_ids");
    const auto refuse = [&] {
      reader_.fail("bad_words_ids", "is " + shown(found) + ", not a list of lists of ids below vocab_size " +
                                        std::to_string(vocab_size_));
    };
    std::vector<std::vector<int64_t>> words;
    if (!found.is_array()) refuse();
    for (const json& word : found) {
      if (!word.is_array() || word.empty()) refuse();
      for (const json& id : word) {
        if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size_)) refuse();
      }
      words.push_back(word.get<std::vector<int64_t>>());
    }
    return words;
  }

  std::vector<std::string> stop_strings() {
    if (!reader_.has("stop_strings")) return {};
    const json& found = reader_.value("stop_strings");
    const json list = found.is_string() ? json::array({found}) : found;
    if (!list.is_array()) reader_.fail("stop_strings", "is " + shown(found) + ", not a string or a list of strings");
    std::vector<std::string> strings;
    for (const json& each : list) {
      if (!each.is_string() || each.get<std::string>().empty()) {
        reader_.fail("stop_strings", "has " + shown(each) + ", not a string with text");
      }
      strings.push_back(each.get<std::string>());
    }
    return strings;
  }

  void read_lengths() {
    TokenRules& rules = config_.rules;
    rules.min_length = reader_.integer_or("min_length", 0, 0);
    rules.min_new_tokens = reader_.integer_or("min_new_tokens", 0, 0);
    if (reader_.has("min_new_tokens")) rules.min_length = 0;  // it goes before, as in transformers
    if (rules.min_length > 0) note("min_length");
    if (rules.min_new_tokens > 0) note("min_new_tokens");
    for (const auto& [key, limit] :
         {std::pair{"max_new_tokens", &config_.max_new_tokens}, {"max_length", &config_.max_length}}) {
      if (!reader_.has(key)) continue;
      *limit = reader_.integer(key);
      note(key);
    }
  }

  ConfigReader reader_;
  int64_t vocab_size_;
  GenerationConfig config_;
};

std::string listed(const std::map<std::string, std::string>& keys, const std::vector<std::string>& overridden) {
  std::string text;
  for (const auto& [key, value] : keys) {
    if (std::find(overridden.begin(), overridden.end(), key) != overridden.end()) continue;
    text += (text.empty() ? "" : ", ") + key + " " + value;
  }
  return text;
}

}  // namespace

GenerationConfig read_generation_config(const fs::path& folder, int64_t vocab_size) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    std::error_code unreadable;
    if (folder.empty() || !fs::exists(folder / name, unreadable)) continue;
    return GenerationConfigReader(folder / name, vocab_size)
        .config(/*all_keys=*/name == std::string("generation_config.json"));
  }
  return {};
}

std::string describe(const GenerationConfig& config, const std::vector<std::string>& overridden) {
  const std::string applied = listed(config.applied, overridden), left_out = listed(config.not_applied, overridden);
  if (applied.empty() && left_out.empty()) return {};
  return config.file.string() + ": " + (applied.empty() ? "" : "applied " + applied) +
         (applied.empty() || left_out.empty() ? "" : "; ") + (left_out.empty() ? "" : "not applied " + left_out);
}

}  // namespace meshtrain
