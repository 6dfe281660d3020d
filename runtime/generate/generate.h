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
  int64_t prefill_tokens = 512;  ///< of a prompt that go through the model at once: bounds memory, not the result
};

struct Generated {
  std::vector<int64_t> tokens;  ///< one of `stop` included, as the last
  bool stopped = false;         ///< by one of them
  double prefill_seconds = 0;   ///< until the first token is chosen
  double decode_seconds = 0;    ///< of all others
};

/// Goes on with `prompt`, at least one id, each below the model's vocab_size. `sequence`: its number among those of one
/// call, for what is drawn. `on_token` is called with each token when it is chosen. What is chosen depends on model,
/// prompt and options, seed included; not on the mesh, but as far as rounding does.
///
/// Every tp rank must call it, with the same arguments, and gets the same tokens. Throws AgreedError when logits are
/// not finite.
Generated generate(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence,
                   const GenerateOptions& options, const std::function<void(int64_t)>& on_token = {});

}  // namespace meshtrain
