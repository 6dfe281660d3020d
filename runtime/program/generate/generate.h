#pragma once

#include <functional>
#include <vector>

#include "runtime/program/generate/language_model.h"
#include "runtime/program/generate/sampling.h"
#include "runtime/program/generate/token_rules.h"

namespace meshtrain {

struct GenerateOptions {
  int64_t max_tokens = 128;        ///< at least 1
  std::vector<int64_t> stop = {};  ///< tokens that end a text
  SamplingOptions sampling = {};
  int64_t prefill_tokens = 512;  ///< tokens of a prompt in one forward: bounds memory, does not change the result
  TokenRules rules = {};
  /// Returns true when the text ends with this token, for a reason besides `stop`. Called with each token, in order, on
  /// every tp rank, and must return the same there; it may be collective over them.
  std::function<bool(int64_t token)> ends_text = {};
};

enum class TextEnd { Length, Token, Text };  ///< max_tokens, a token of `stop`, ends_text

struct GenerationResult {
  std::vector<int64_t> tokens;  ///< tokens chosen, including one of `stop` as the last
  TextEnd end = TextEnd::Length;
  double prefill_seconds = 0;  ///< until the first token is chosen
  double decode_seconds = 0;   ///< for all other tokens
};

/// Continues `prompt`, at least one id, each below the model's vocab_size. `sequence`: the prompt's number among those
/// of one call, for random draws. `on_token` is called with each token when it is chosen. The tokens depend on model,
/// prompt and options, seed included, and on the mesh only as far as rounding does.
///
/// Every tp rank must call it, with the same arguments, and gets the same tokens. Throws AgreedError when logits are
/// not finite, and when the rules exclude every token.
GenerationResult generate(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence,
                          const GenerateOptions& options, const std::function<void(int64_t)>& on_token = {});

}  // namespace meshtrain
