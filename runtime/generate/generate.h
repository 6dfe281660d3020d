#pragma once

#include <functional>
#include <vector>

#include "runtime/generate/language_model.h"
#include "runtime/generate/sampling.h"

namespace meshtrain {

struct GenerateOptions {
  int64_t max_tokens = 128;   ///< at least 1
  std::vector<int64_t> stop;  ///< tokens that end a text
  SamplingOptions sampling;
  int64_t prefill_tokens = 512;  ///< tokens of a prompt in one forward: bounds memory, does not change the result
};

struct Generated {
  std::vector<int64_t> tokens;  ///< tokens chosen, including one of `stop` as the last
  bool stopped = false;         ///< a token of `stop` ended the text
  double prefill_seconds = 0;   ///< until the first token is chosen
  double decode_seconds = 0;    ///< for all other tokens
};

/// Continues `prompt`, at least one id, each below the model's vocab_size. `sequence`: the prompt's number among those
/// of one call, for random draws. `on_token` is called with each token when it is chosen. The tokens depend on model,
/// prompt and options, seed included, and on the mesh only as far as rounding does.
///
/// Every tp rank must call it, with the same arguments, and gets the same tokens. Throws AgreedError when logits are
/// not finite.
Generated generate(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence,
                   const GenerateOptions& options, const std::function<void(int64_t)>& on_token = {});

}  // namespace meshtrain
