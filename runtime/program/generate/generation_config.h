#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/generate/sampling.h"
#include "runtime/program/generate/token_rules.h"

namespace meshtrain {

/// What a folder asks of generation, with the meaning and the defaults of transformers' GenerationConfig.
struct GenerationConfig {
  SamplingOptions sampling;  ///< of temperature 0 unless do_sample is true
  TokenRules rules;
  std::vector<std::string> stop_strings;
  std::optional<int64_t> max_new_tokens;
  std::optional<int64_t> max_length;  ///< the prompt included; counts without max_new_tokens

  std::filesystem::path file = {};                      ///< where this stands; empty: nowhere
  std::map<std::string, std::string> applied = {};      ///< the keys that change what is generated, with their values
  std::map<std::string, std::string> not_applied = {};  ///< those that transformers would apply too
};

/// Reads generation_config.json of `folder`; where there is none, the keys of generation in config.json, as
/// transformers does; where there is neither, or `folder` is empty, returns the defaults. `vocab_size`: that of the
/// model. Throws InputError that names file and key for a value that is impossible.
GenerationConfig read_generation_config(const std::filesystem::path& folder, int64_t vocab_size);

/// Returns a line that says what of the file is applied and what is not; empty when there is neither. `overridden`:
/// keys for which the command line has another value.
std::string describe(const GenerationConfig& config, const std::vector<std::string>& overridden);

}  // namespace meshtrain
