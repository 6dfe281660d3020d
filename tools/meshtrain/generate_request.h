#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/program/generate/model_source.h"
#include "runtime/program/generate/prompts.h"
#include "runtime/program/generate/sampling.h"
#include "runtime/program/generate/token_rules.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tools/meshtrain/generate_arguments.h"

namespace meshtrain {

/// The part of what is asked that all ranks have to know.
struct GenerateRequest {
  std::vector<std::vector<int64_t>> prompts;
  std::vector<int64_t> max_tokens;  // of each
  std::vector<int64_t> stop;
  SamplingOptions sampling;
  TokenRules rules;
  std::vector<std::string> stop_strings;

  /// Returns it as a text, from which parse() makes it again on another rank.
  std::string text() const;
  static GenerateRequest parse(const std::string& text);
};

/// Returns the prompts that the command line names. Throws InputError when it names none, and as those who read them.
std::vector<Prompt> asked_prompts(const GenerateArguments& arguments);

/// Returns the tokenizer of --tokenizer or of the model; null when there is none. Throws InputError when it has ids
/// that the model does not know.
std::shared_ptr<const Tokenizer> tokenizer_of(const GenerateArguments& arguments, const ModelSource& source);

/// Returns what is asked of the model, with what its folder says where the command line does not, and says so on
/// stderr. Throws InputError for a prompt that the model cannot continue. `tokenizer` may be null.
GenerateRequest make_request(const GenerateArguments& arguments, const std::vector<Prompt>& prompts,
                             const ModelSource& source, const Tokenizer* tokenizer);

/// Warns on stderr of a text that is longer than the samples that the model was trained on. `what`: "prompt 1".
void warn_of_length(const std::string& what, size_t length, int64_t trained);

}  // namespace meshtrain
