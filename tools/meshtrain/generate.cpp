#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "mesh/agree.h"
#include "mesh/error.h"
#include "mesh/layout.h"
#include "mesh/size_text.h"
#include "runtime/chat/chat_tokens.h"
#include "runtime/generate/chat_prompts.h"
#include "runtime/generate/generate.h"
#include "runtime/generate/generation_config.h"
#include "runtime/generate/model_source.h"
#include "runtime/generate/prompts.h"
#include "runtime/generate/stop_strings.h"
#include "runtime/launch/connect.h"
#include "runtime/launch/connect_devices.h"
#include "runtime/recipe/validate.h"
#include "runtime/trainer/assemble.h"
#include "runtime/watch/phase.h"
#include "runtime/yaml/scalar_text.h"
#include "tools/meshtrain/commands.h"
#include "tools/meshtrain/generated_output.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxTokens = 128;  // of a prompt when nobody says

struct GenerateArguments {
  fs::path model;
  std::vector<std::string> prompts, tokens;
  std::optional<std::string> prompt_file, tokenizer, precision;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;  // none: as generation_config.json has it
  std::optional<int64_t> top_k, no_repeat_ngram_size, min_tokens;
  std::vector<std::string> bad_words, stop_strings;
  uint64_t seed = 0;
  bool uses_config = true;
  bool stop_at_eos = true;
  std::string mesh = "tp=auto", device = "auto";
  bool json_lines = false;
  bool chats = false;
  std::optional<std::string> system, chat_template;  // of --chat, as the next
  bool continues_assistant = false;

  ChatPromptOptions chat_options() const { return {system ? &*system : nullptr, continues_assistant}; }
};

/// What all ranks have to know of what is asked.
struct Request {
  std::vector<std::vector<int64_t>> prompts;
  std::vector<int64_t> max_tokens;  // of each
  std::vector<int64_t> stop;
  SamplingOptions sampling;
  TokenRules rules;
  std::vector<std::string> stop_strings;

  std::string text() const {
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
  static Request parse(const std::string& text) {
    const json list = json::parse(text);
    size_t next = 0;
    Request request;
    const auto take = [&](auto& value) { list[next++].get_to(value); };
    take(request.prompts), take(request.max_tokens), take(request.stop);
    SamplingOptions& sampling = request.sampling;
    take(sampling.temperature), take(sampling.top_k), take(sampling.top_p), take(sampling.seed), take(sampling.min_p);
    TokenRules& rules = request.rules;
    take(rules.repetition_penalty), take(rules.no_repeat_ngram_size), take(rules.bad_words_ids);
    take(rules.min_length), take(rules.min_new_tokens), take(request.stop_strings);
    return request;
  }
};

std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), {}};
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
    if (prompts.empty()) throw InputError("--prompt-file " + file + ": there is no prompt in it");
  }
  if (prompts.empty()) throw InputError("a prompt is missing: give --prompt, --prompt-file or --tokens");
  return prompts;
}

/// The most positions of a text, and the key that says so; 0: any number.
struct MostPositions {
  const char* key;
  int64_t count;
};

/// Returns the limit for a text that begins with `prompt` tokens. Under longrope the frequencies change at the original
/// length, with which those of earlier positions would have to be computed again.
MostPositions most_positions(const ModelShape& shape, int64_t prompt) {
  const auto& scaling = shape.rope_scaling;
  if (scaling && scaling->type == "longrope" && prompt <= scaling->original_max_position_embeddings) {
    return {"original_max_position_embeddings", scaling->original_max_position_embeddings};
  }
  return {"max_position_embeddings", shape.max_position_embeddings};
}

/// How many tokens a prompt of so many may be given.
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

/// With ids of the model alone. Those of bytes may go beyond: a model of ASCII has the lower ones.
std::shared_ptr<const Tokenizer> load(const std::string& name, const ModelSource& source, const std::string& where) {
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(name);
  if (name != "bytes") check_vocabulary(*tokenizer, source.shape.vocab_size, where);
  return tokenizer;
}

std::shared_ptr<const Tokenizer> tokenizer_of(const GenerateArguments& arguments, const ModelSource& source) {
  const std::string name = arguments.tokenizer.value_or(tokenizer_of(source));
  if (name.empty()) return nullptr;
  const std::string where = arguments.tokenizer        ? "--tokenizer " + name
                            : source.tokenizer.empty() ? "the tokenizer in " + name
                                                       : "data.tokenizer of the run's recipe, " + name;
  const std::shared_ptr<const Tokenizer> tokenizer = load(name, source, where);
  const std::string other = describe_other_tokenizer(source, name);
  if (!other.empty()) std::fprintf(stderr, "%s\n", other.c_str());
  return tokenizer;
}

/// Returns the chat template with which texts become prompts; std::nullopt without --chat.
std::optional<ChatTemplate> chat_template_of(const GenerateArguments& arguments, const ModelSource& source) {
  if (!arguments.chats) return std::nullopt;
  const std::string name = arguments.tokenizer.value_or(tokenizer_of(source));
  if (name.empty()) throw InputError("--chat needs a tokenizer, and the model has none beside it: give --tokenizer");
  return ChatTemplate(name, arguments.chat_template);
}

/// Warns of a text that is longer than the samples that the model was trained on. `what`: "prompt 1".
void warn_of_length(const std::string& what, size_t length, int64_t trained) {
  if (trained == 0 || static_cast<int64_t>(length) <= trained) return;
  std::fprintf(stderr, "warning: %s has %s, and the model was trained on %s at a time (train.sequence_length)\n",
               what.c_str(), counted(length, "token").c_str(), with_separators(trained).c_str());
}

/// What the command line says in place of `config`. Returns the keys of generation_config.json that it has replaced.
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
      throw InputError("--bad-words: there is no token " + std::to_string(id) + ", the model's vocabulary has " +
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

/// What decides on tokens, beside the model: of the folder, and of the command line.
/// `line`: what is said of it.
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

Request make_request(const GenerateArguments& arguments, const std::vector<Prompt>& prompts, const ModelSource& source,
                     const Tokenizer* tokenizer) {
  Request request;
  std::string line;
  const GenerationConfig config = read_config(arguments, source, tokenizer, line);
  request.sampling = config.sampling;
  request.sampling.seed = arguments.seed;
  request.rules = config.rules;
  request.stop_strings = config.stop_strings;
  const std::string missing = describe_missing(source);
  const std::optional<ChatTemplate> chat = chat_template_of(arguments, source);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string where = "prompt " + std::to_string(i + 1);
    if (prompts[i].is_text && tokenizer == nullptr && !missing.empty()) {
      throw InputError(where + " is a text, and " + missing +
                       ": give --tokenizer, the file or folder where its tokenizer is now");
    }
    const Prompt& given = prompts[i];
    const Prompt prompt = chat ? render_prompt(given, *chat, *tokenizer, arguments.chat_options()) : given;
    if (given.conversation && given.conversation->tools.is_true() && !chat->reads_tools(*given.conversation)) {
      std::fprintf(stderr, "warning: %s has tools, which the template does not mention: the model does not see them\n",
                   given.location.c_str());
    }
    request.prompts.push_back(encode_prompt(prompt, tokenizer, source.shape.vocab_size, where));
    warn_of_length(where, request.prompts.back().size(), source.trained_length);
    request.max_tokens.push_back(allowed_tokens(static_cast<int64_t>(request.prompts.back().size()),
                                                arguments.max_tokens, config, source.shape, where));
  }
  if (!line.empty()) std::fprintf(stderr, "%s\n", line.c_str());
  if (!arguments.stop_at_eos) return request;
  request.stop = stop_tokens(source, tokenizer);
  const std::optional<int64_t> end = chat ? end_of_turn(*chat, *tokenizer) : std::nullopt;
  if (end && std::find(request.stop.begin(), request.stop.end(), *end) == request.stop.end()) {
    request.stop.push_back(*end);
  }
  if (request.stop.empty() && !missing.empty()) {
    std::fprintf(stderr, "%s, and no token is known that ends a text: give a --tokenizer that names one\n",
                 missing.c_str());
  }
  return request;
}

int64_t num_parameters(LanguageModel& model) {
  int64_t count = 0;
  for (const Unit& unit : model.model().fsdp().units()) {
    for (const Parameter* parameter : unit.parameters()) {
      int64_t elements = 1;
      for (const int64_t extent : parameter->global_shape) elements *= extent;
      count += elements;
    }
  }
  return count;
}

std::unique_ptr<LanguageModel> load_model(const ModelSource& source, const std::string& precision,
                                          const DeviceMesh& mesh, at::Device device) {
  const Clock::time_point start = Clock::now();
  const Phase phase("the reading of " + source.folder.string());
  std::unique_ptr<ModelWeights> weights;
  agree(mesh.world(), [&] { weights = std::make_unique<ModelWeights>(source); });
  auto model = std::make_unique<LanguageModel>(
      source.shape, mesh, dtype_of(precision), [&](const Parameter& parameter) { weights->read(parameter); }, device);
  if (mesh.rank() == 0) {
    const std::string unused = describe_unused(source);
    if (!unused.empty()) std::fprintf(stderr, "%s\n", unused.c_str());
    std::fprintf(stderr, "%s: %s parameters in %s on %lld rank%s, loaded in %.2f s\n", source.folder.c_str(),
                 with_separators(num_parameters(*model)).c_str(), precision.c_str(),
                 static_cast<long long>(mesh.size()), mesh.size() == 1 ? "" : "s",
                 std::chrono::duration<double>(Clock::now() - start).count());
  }
  return model;
}

MeshLayout layout_of(const std::string& asked, int num_ranks) {
  const std::map<std::string, int64_t> sizes = parse_mesh(asked);
  for (const auto& [axis, size] : sizes) {
    if (axis == kTensorAxis || size == 1) continue;
    throw InputError("--mesh " + asked +
                     ": text is generated over tp alone, whose ranks share one sequence: give --mesh tp=" +
                     std::to_string(num_ranks) + ", or leave it out");
  }
  return MeshLayout::fit(sizes, training_axes(), num_ranks);
}

/// A search for strings that end a text: rank 0, which has the tokenizer, looks and tells the others.
std::function<bool(int64_t)> search(const std::vector<std::string>& strings, const std::vector<int64_t>& prompt,
                                    const std::optional<GeneratedOutput>& output, const Group& world) {
  const auto found = output ? std::make_shared<StopStrings>(*output->tokenizer(), strings, prompt) : nullptr;
  return [found, &world](int64_t token) {
    at::Tensor ends = at::full({1}, found && found->add(token) ? 1 : 0, at::kLong);
    world.broadcast(ends, 0).wait();
    return ends.item<int64_t>() != 0;
  };
}

void generate_all(const GenerateArguments& arguments, const Group& world) {
  const MeshLayout layout = layout_of(arguments.mesh, world.size());
  const Computing computing = connect_devices({.kind = device_kind(arguments.device)}, world);
  const DeviceMesh mesh(layout, computing.world);
  set_rank_name(mesh.world().coordinate_text());
  const bool first = mesh.rank() == 0;
  if (first && !computing.fallback.empty()) std::fprintf(stderr, "%s\n", computing.fallback.c_str());
  std::string folder;  // the newest checkpoint may be another one a moment later
  agree(world, [&] {
    if (first) folder = find_model(arguments.model).string();
  });
  folder = broadcast_text(world, folder);
  ModelSource source;
  agree(world, [&] {
    source = read_model_source(folder);
    check_tensor_parallel(source.shape, mesh.size(kTensorAxis));
  });

  std::optional<GeneratedOutput> output;  // of rank 0
  Request request;
  agree(world, [&] {
    if (!first) return;
    using Style = GeneratedOutput::Style;
    const Style style = arguments.json_lines ? Style::Json : world.size() > 1 ? Style::Whole : Style::Stream;
    output.emplace(asked_prompts(arguments), tokenizer_of(arguments, source), style);
    request = make_request(arguments, output->prompts(), source, output->tokenizer());
  });
  request = Request::parse(broadcast_text(world, request.text()));

  const std::unique_ptr<LanguageModel> model =
      load_model(source, arguments.precision.value_or(source.precision), mesh, computing.device);
  GenerateOptions options{.stop = request.stop, .sampling = request.sampling, .rules = request.rules};
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    const std::vector<int64_t>& prompt = request.prompts[i];
    options.max_tokens = request.max_tokens[i];
    const Phase phase("the text of prompt " + std::to_string(i + 1));
    if (output) output->begin(i, prompt);
    if (!request.stop_strings.empty()) options.ends_text = search(request.stop_strings, prompt, output, world);
    const Generated generated = generate(*model, prompt, i, options, [&](int64_t token) {
      if (output) output->add(token);
    });
    if (output) output->end(i, prompt, generated);
    const auto length = static_cast<int64_t>(prompt.size() + generated.tokens.size());
    if (first && static_cast<int64_t>(prompt.size()) <= source.trained_length) {
      warn_of_length("the text of prompt " + std::to_string(i + 1), static_cast<size_t>(length), source.trained_length);
    }
  }
}

void check_sampling(const GenerateArguments& asked) {
  const auto refuse = [](const char* option, double value, const char* needed) {
    throw InputError(std::string(option) + ": " + scalar_text(value) + " is not a " + needed);
  };
  const double temperature = asked.temperature.value_or(1), penalty = asked.repetition_penalty.value_or(1);
  const double top_p = asked.top_p.value_or(1), min_p = asked.min_p.value_or(0);
  if (!std::isfinite(temperature) || temperature < 0) {
    refuse("--temperature", temperature, "finite number of at least 0");
  }
  if (!(top_p > 0 && top_p <= 1)) refuse("--top-p", top_p, "number above 0 and at most 1");
  if (!(min_p >= 0 && min_p <= 1)) refuse("--min-p", min_p, "number from 0 to 1");
  if (!std::isfinite(penalty) || penalty <= 0) refuse("--repetition-penalty", penalty, "finite number above 0");
}

int generate_on_ranks(const GenerateArguments& arguments) {
  check_sampling(arguments);
  const Group world = connect_world();
  return run_on_all_ranks(world, [&] {
    generate_all(arguments, world);
    return 0;
  });
}

void add_prompt_options(CLI::App& command, GenerateArguments& arguments) {
  const auto repeatable = [](CLI::Option* option) { return option->expected(1)->allow_extra_args(false)->take_all(); };
  CLI::Option* prompt =
      repeatable(command.add_option("--prompt", arguments.prompts,
                                    "A text to continue; -: read it from stdin, without its last line break. An empty "
                                    "text is the tokenizer's token for the beginning of a text, where it names one. "
                                    "May be repeated: one text after another"))
          ->type_name("TEXT");
  CLI::Option* file =
      command
          .add_option("--prompt-file", arguments.prompt_file,
                      "A file with a prompt on each line; in *.jsonl and *.ndjson a line is a JSON string, "
                      "or an object with \"prompt\" or \"tokens\", with --chat also a conversation of several "
                      "turns, as data prepare --chat reads it, to be answered; -: read the lines from stdin")
          ->type_name("FILE");
  CLI::Option* tokens =
      repeatable(command.add_option("--tokens", arguments.tokens, "Token ids to continue, as 1,2,3. May be repeated"))
          ->type_name("IDS");
  prompt->excludes(file)->excludes(tokens);
  file->excludes(tokens);
  CLI::Option* chat = command.add_flag(
      "--chat", arguments.chats,
      "Each prompt is what a user says, or a conversation of --prompt-file: it is "
      "rendered by the tokenizer's chat template, and the token that ends the assistant's turn ends the text");
  CLI::Option* system =
      command.add_option("--system", arguments.system, "With --chat: the system message before the prompt")
          ->type_name("TEXT");
  CLI::Option* chat_template = command
                                   .add_option("--chat-template", arguments.chat_template,
                                               "With --chat: a Jinja template to use instead of the tokenizer's own")
                                   ->type_name("FILE");
  CLI::Option* unfinished =
      command.add_flag("--continue-final-message", arguments.continues_assistant,
                       "With --chat: continues the assistant's last message where a conversation of --prompt-file ends "
                       "with one");
  chat->excludes(tokens);
  unfinished->needs(chat)->needs(file);
  system->needs(chat);
  chat_template->needs(chat);
  command
      .add_option("--tokenizer", arguments.tokenizer,
                  "bytes, or a tokenizer.json, a SentencePiece *.model, or a folder with one of them. Default: the "
                  "one in the Hugging Face folder; for a run the data.tokenizer of its recipe, else the one in the "
                  "folder of its model.hf")
      ->type_name("NAME");
}

void add_sampling_options(CLI::App& command, GenerateArguments& arguments) {
  command
      .add_option("--max-tokens", arguments.max_tokens,
                  "The most tokens to generate. Default: max_new_tokens or max_length of generation_config.json, else "
                  "128, or fewer where max_position_embeddings leaves no more")
      ->check(whole_number(1))
      ->type_name("N");
  command
      .add_option("--temperature", arguments.temperature,
                  "Divides the logits before a token is drawn; 0 takes the most likely token. Default: 0, unless "
                  "generation_config.json has do_sample")
      ->type_name("T");
  command.add_option("--top-k", arguments.top_k, "Draws from the K most likely tokens only; 0: from all. Default: 50")
      ->check(whole_number(0))
      ->type_name("K");
  command
      .add_option("--top-p", arguments.top_p,
                  "Keeps the fewest most likely tokens whose probabilities add up to P, above 0 and at most 1")
      ->type_name("P");
  command
      .add_option("--min-p", arguments.min_p,
                  "Keeps the tokens that are at least P times as likely as the most likely one, from 0 to 1")
      ->type_name("P");
  command.add_option("--seed", arguments.seed, "Seed of the draws; the same seed draws the same on every mesh")
      ->capture_default_str()
      ->check(whole_number(0))
      ->type_name("S");
}

void add_rule_options(CLI::App& command, GenerateArguments& arguments) {
  const auto repeatable = [](CLI::Option* option) { return option->expected(1)->allow_extra_args(false)->take_all(); };
  command
      .add_option("--repetition-penalty", arguments.repetition_penalty,
                  "Above 1 makes tokens that the text already has less likely, below 1 more likely")
      ->type_name("X");
  command
      .add_option("--no-repeat-ngram-size", arguments.no_repeat_ngram_size,
                  "Never repeats N tokens in a row that prompt and text already have; 0: off")
      ->check(whole_number(0))
      ->type_name("N");
  repeatable(command.add_option("--bad-words", arguments.bad_words,
                                "Token ids, as 1,2,3, that are never generated in this order. May be repeated"))
      ->type_name("IDS");
  command.add_option("--min-tokens", arguments.min_tokens, "The fewest tokens to generate before the text may end")
      ->check(whole_number(0))
      ->type_name("N");
  repeatable(command.add_option("--stop", arguments.stop_strings,
                                "Ends the text after the token that completes this string. May be repeated"))
      ->type_name("TEXT");
  command.add_flag("--stop-at-eos,!--ignore-eos", arguments.stop_at_eos,
                   "Whether to stop at an end token: eos_token_id of generation_config.json or config.json, the "
                   "tokenizer's, or the token that ends the documents of a run's data. Default: stop");
  command.add_flag("--generation-config,!--ignore-generation-config", arguments.uses_config,
                   "Whether generation_config.json of the model's folder, or config.json where it is absent, gives the "
                   "values that the command line does not. Default: it does");
}

}  // namespace

void add_generate_command(CLI::App& app, int& status) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand(
      "generate",
      "Continues a text with the model of a Hugging Face folder or of a run's checkpoint, on one rank or on several\n"
      "that share the model over tp. Prints the text to stdout, on one rank token by token, and all else to stderr.\n\n"
      "  meshtrain generate models/SmolLM2-1.7B --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95\n"
      "  meshtrain generate models/SmolLM2-1.7B-Instruct --chat --prompt 'Why is the sky blue?'\n"
      "  meshtrain generate models/SmolLM2-1.7B-Instruct --chat --prompt-file chats.jsonl --json\n"
      "  mpirun -n 2 meshtrain generate runs/mine --prompt '#include' --max-tokens 200");
  command
      ->add_option(
          "model", arguments->model,
          "A Hugging Face folder, a checkpoint's folder, or a run directory or its checkpoints: then the newest one")
      ->required()
      ->type_name("MODEL");
  add_prompt_options(*command, *arguments);
  add_sampling_options(*command, *arguments);
  add_rule_options(*command, *arguments);
  command->add_option("--mesh", arguments->mesh, "Ranks that share the model, as tp=2. Default: all ranks")
      ->type_name("tp=N");
  add_computing_options(*command, arguments->precision, arguments->device);
  command->add_flag(
      "--json", arguments->json_lines,
      "A JSON object on a line for each prompt: prompt, prompt_tokens, tokens, text, ended (eos, stop, length)");
  command->callback([arguments, &status] { status = generate_on_ranks(*arguments); });
}

}  // namespace meshtrain
