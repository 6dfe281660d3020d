#include "tools/meshtrain/generate_request.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/base/size_text.h"
#include "runtime/program/generate/generation_config.h"
#include "runtime/text/chat/chat_tokens.h"

namespace meshtrain {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTokens = 128;  // of a prompt when nobody says

std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

/// The most positions of a text, and the key that says so; 0: any number.
struct PositionLimit {
  const char* key;
  int64_t count;
};

/// Returns the limit for a text that begins with `prompt` tokens. Under longrope the frequencies change at the original
/// length, with which those of earlier positions would have to be computed again.
PositionLimit most_positions(const ModelShape& shape, int64_t prompt) {
  const auto& scaling = shape.rope_scaling;
  if (scaling && scaling->type == "longrope" && prompt <= scaling->original_max_position_embeddings) {
    return {"original_max_position_embeddings", scaling->original_max_position_embeddings};
  }
  return {"max_position_embeddings", shape.max_position_embeddings};
}

/// Returns how many tokens may follow a prompt of `prompt` tokens.
int64_t allowed_tokens(int64_t prompt, const std::optional<int64_t>& asked, const GenerationConfig& config,
                       const ModelShape& shape, const std::string& where) {
  const auto [key_of_positions, positions] = most_positions(shape, prompt);
  const auto takes = [&](const char* key, int64_t limit) {
    return where + " takes " + std::to_string(prompt) + " of " + key + " " + std::to_string(limit) + ": ";
  };
  const int64_t room = positions == 0 ? std::numeric_limits<int64_t>::max() : positions - prompt;
  const std::string of_positions = takes(key_of_positions, positions);
  if (room <= 0) throw InputError(of_positions + "nothing can follow");
  if (asked.value_or(0) > room) throw InputError(of_positions + "give at most --max-tokens " + std::to_string(room));
  if (asked) return *asked;
  if (config.max_new_tokens) return std::min(*config.max_new_tokens, room);
  if (!config.max_length) return std::min(kMaxTokens, room);
  if (*config.max_length > prompt) return std::min(*config.max_length - prompt, room);
  throw InputError(takes("max_length", *config.max_length) + "nothing can follow, as " + config.file.string() +
                   " says: give --max-tokens");
}

/// Loads a tokenizer with ids of the model alone. Those of bytes may go beyond: a model of ASCII has the lower ones.
std::shared_ptr<const Tokenizer> load(const std::string& name, const ModelSource& source, const std::string& where) {
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(name);
  if (name != "bytes") check_vocabulary(*tokenizer, source.shape.vocab_size, where);
  return tokenizer;
}

/// Returns the chat template with which texts become prompts; std::nullopt without --chat.
std::optional<ChatTemplate> chat_template_of(const GenerateArguments& arguments, const ModelSource& source) {
  if (!arguments.chats) return std::nullopt;
  const std::string name = arguments.tokenizer.value_or(tokenizer_of(source));
  if (name.empty()) throw InputError("--chat needs a tokenizer, but the model's folder has none: give --tokenizer");
  return ChatTemplate(name, arguments.chat_template);
}

/// Replaces the values of `config` that the command line gives. Returns the keys of generation_config.json that it has
/// replaced.
std::vector<std::string> override_with(const GenerateArguments& arguments, int64_t vocab_size,
                                       GenerationConfig& config) {
  std::vector<std::string> keys;
  const auto replace = [&](const char* key, const auto& asked, auto& value) {
    if (!asked) return;
    value = *asked;
    keys.emplace_back(key);
  };
  SamplingOptions& sampling = config.sampling;
  TokenRules& rules = config.rules;
  replace("temperature", arguments.temperature, sampling.temperature);
  replace("top_k", arguments.top_k, sampling.top_k);
  replace("top_p", arguments.top_p, sampling.top_p);
  replace("min_p", arguments.min_p, sampling.min_p);
  replace("repetition_penalty", arguments.repetition_penalty, rules.repetition_penalty);
  replace("no_repeat_ngram_size", arguments.no_repeat_ngram_size, rules.no_repeat_ngram_size);
  replace("min_new_tokens", arguments.min_tokens, rules.min_new_tokens);
  if (arguments.temperature) keys.emplace_back("do_sample");
  if (arguments.temperature == 0.0) keys.insert(keys.end(), {"top_k", "top_p", "min_p"});
  if (arguments.min_tokens) rules.min_length = 0, keys.emplace_back("min_length");
  if (arguments.max_tokens) keys.insert(keys.end(), {"max_new_tokens", "max_length"});
  if (!arguments.bad_words.empty()) rules.bad_words_ids.clear(), keys.emplace_back("bad_words_ids");
  for (const std::string& word : arguments.bad_words) {
    rules.bad_words_ids.push_back(parse_token_prompt(word, "--bad-words").tokens);
    for (const int64_t id : rules.bad_words_ids.back()) {
      if (id < vocab_size) continue;
      throw InputError("--bad-words: token " + std::to_string(id) + " does not exist: the model's vocabulary has " +
                       std::to_string(vocab_size));
    }
  }
  if (!arguments.stop_strings.empty()) config.stop_strings = arguments.stop_strings, keys.emplace_back("stop_strings");
  const bool narrows = arguments.top_k || arguments.top_p || arguments.min_p;
  if (sampling.temperature == 0 && narrows) {
    throw InputError(
        "--top-k, --top-p and --min-p narrow what is drawn, and temperature 0 draws nothing: give --temperature");
  }
  return keys;
}

/// Returns what decides on tokens beside the model, of the folder and of the command line. `line`: what is said of it.
GenerationConfig read_config(const GenerateArguments& arguments, const ModelSource& source, const Tokenizer* tokenizer,
                             std::string& line) {
  const int64_t vocab_size = source.shape.vocab_size;
  GenerationConfig config;
  if (arguments.uses_config) config = read_generation_config(source.hugging_face, vocab_size);
  const std::vector<std::string> overridden = override_with(arguments, vocab_size, config);
  if (!config.stop_strings.empty() && tokenizer == nullptr) {
    if (!arguments.stop_strings.empty()) throw InputError("--stop needs a text: give --tokenizer");
    config.not_applied["stop_strings"] = config.applied["stop_strings"] + " (there is no tokenizer)";
    config.applied.erase("stop_strings");
    config.stop_strings.clear();
  }
  line = describe(config, overridden);
  return config;
}

}  // namespace

std::string GenerateRequest::text() const {
  return json{prompts,
              max_tokens,
              stop,
              sampling.temperature,
              sampling.top_k,
              sampling.top_p,
              sampling.seed,
              sampling.min_p,
              rules.repetition_penalty,
              rules.no_repeat_ngram_size,
              rules.bad_words_ids,
              rules.min_length,
              rules.min_new_tokens,
              stop_strings}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

GenerateRequest GenerateRequest::parse(const std::string& text) {
  const json list = json::parse(text);
  size_t next = 0;
  GenerateRequest request;
  const auto take = [&](auto& value) { list[next++].get_to(value); };
  take(request.prompts), take(request.max_tokens), take(request.stop);
  SamplingOptions& sampling = request.sampling;
  take(sampling.temperature), take(sampling.top_k), take(sampling.top_p), take(sampling.seed), take(sampling.min_p);
  TokenRules& rules = request.rules;
  take(rules.repetition_penalty), take(rules.no_repeat_ngram_size), take(rules.bad_words_ids);
  take(rules.min_length), take(rules.min_new_tokens), take(request.stop_strings);
  return request;
}

std::vector<Prompt> asked_prompts(const GenerateArguments& arguments) {
  std::vector<Prompt> prompts;
  for (const std::string& text : arguments.prompts) {
    prompts.push_back({text == "-" ? standard_input() : text});
    if (text == "-" && prompts.back().text.ends_with('\n')) prompts.back().text.pop_back();
  }
  for (const std::string& list : arguments.tokens) prompts.push_back(parse_token_prompt(list, "--tokens"));
  if (arguments.prompt_file) {
    const std::string& file = *arguments.prompt_file;
    prompts = file == "-"       ? prompts_of_lines(standard_input())
              : arguments.chats ? read_chat_prompts(file, arguments.chat_options())
                                : read_prompts(file);
    if (prompts.empty()) throw InputError("--prompt-file " + file + ": the file has no prompts");
  }
  if (prompts.empty()) throw InputError("a prompt is missing: give --prompt, --prompt-file or --tokens");
  return prompts;
}

std::shared_ptr<const Tokenizer> tokenizer_of(const GenerateArguments& arguments, const ModelSource& source) {
  const std::string name = arguments.tokenizer.value_or(tokenizer_of(source));
  if (name.empty()) return nullptr;
  const std::string where = arguments.tokenizer        ? "--tokenizer " + name
                            : source.tokenizer.empty() ? "the tokenizer in " + name
                                                       : "data.tokenizer of the run's recipe, " + name;
  return load(name, source, where);
}

void warn_of_length(const std::string& what, size_t length, int64_t trained) {
  if (trained == 0 || static_cast<int64_t>(length) <= trained) return;
  log_warning(what + " has " + counted(length, "token") + ", and the model was trained on " + with_separators(trained) +
              " at a time (train.sequence_length)");
}

GenerateRequest make_request(const GenerateArguments& arguments, const std::vector<Prompt>& prompts,
                             const ModelSource& source, const Tokenizer* tokenizer) {
  GenerateRequest request;
  std::string line;
  const GenerationConfig config = read_config(arguments, source, tokenizer, line);
  request.sampling = config.sampling;
  request.sampling.seed = arguments.seed;
  request.rules = config.rules;
  request.stop_strings = config.stop_strings;
  if (tokenizer != nullptr) {
    const std::string other = describe_other_tokenizer(source, arguments.tokenizer.value_or(tokenizer_of(source)));
    if (!other.empty()) log_warning(other);
  }
  const std::string missing = describe_missing(source);
  const std::optional<ChatTemplate> chat = chat_template_of(arguments, source);
  if (chat && !chat->warning().empty()) log_warning(chat->warning());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = "prompt " + std::to_string(i + 1);
    if (prompts[i].is_text && tokenizer == nullptr && !missing.empty()) {
      throw InputError(where + " is a text, and " + missing +
                       ": give --tokenizer, the file or folder where its tokenizer is now");
    }
    const Prompt& given = prompts[i];
    const Prompt prompt = chat ? render_prompt(given, *chat, *tokenizer, arguments.chat_options()) : given;
    if (given.conversation && given.conversation->tools.is_true() && !chat->reads_tools(*given.conversation)) {
      log_warning(given.location + " has tools, which the template does not mention: the model does not see them");
    }
    request.prompts.push_back(encode_prompt(prompt, tokenizer, source.shape.vocab_size, where));
    warn_of_length(where, request.prompts.back().size(), source.trained_length);
    request.max_tokens.push_back(allowed_tokens(static_cast<int64_t>(request.prompts.back().size()),
                                                arguments.max_tokens, config, source.shape, where));
  }
  if (!line.empty()) log_info(line);
  if (!arguments.stop_at_eos) return request;
  request.stop = stop_tokens(source, tokenizer);
  const std::optional<int64_t> end = chat ? end_of_turn(*chat, *tokenizer) : std::nullopt;
  if (end && std::find(request.stop.begin(), request.stop.end(), *end) == request.stop.end()) {
    request.stop.push_back(*end);
  }
  if (request.stop.empty() && !missing.empty()) {
    log_warning(missing + ", and no token is known to end a text: give --tokenizer");
  }
  return request;
}

}  // namespace meshtrain
