#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/generate/chat_prompts.h"
#include "tools/meshtrain/computing_arguments.h"

namespace meshtrain {

/// The command line of `meshtrain generate`.
struct GenerateArguments {
  std::filesystem::path model, adapter, base;
  std::vector<std::string> prompts, tokens;
  std::optional<std::string> prompt_file, tokenizer;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;  // none: as generation_config.json has it
  std::optional<int64_t> top_k, no_repeat_ngram_size, min_tokens;
  std::vector<std::string> bad_words, stop_strings;
  uint64_t seed = 0;
  bool uses_config = true;
  bool stop_at_eos = true;
  std::string mesh = "tp=auto";
  ComputingArguments computing;
  bool json_lines = false;
  bool chats = false;
  std::optional<std::string> system, chat_template;  // of --chat, as the next
  bool continues_assistant = false;

  ChatPromptOptions chat_options() const { return {system ? &*system : nullptr, continues_assistant}; }
};

/// Adds the options that say what is generated from, and how. `arguments` has to outlive `command`.
void add_generate_options(CLI::App& command, GenerateArguments& arguments);

/// Throws InputError, naming the option, for a number with which no token can be drawn.
void check_sampling(const GenerateArguments& asked);

}  // namespace meshtrain
