#pragma once

#include <functional>
#include <vector>

#include "runtime/program/generate/continuation.h"

namespace meshtrain {

struct GenerationResult {
  std::vector<int64_t> tokens;  ///< tokens chosen, including one of `stop` as the last
  TextEnd end = TextEnd::Length;
  double prefill_seconds = 0;  ///< until the first token is chosen
  double decode_seconds = 0;   ///< for all other tokens
};

/// Receives what all rows generate. Every rank gets the same calls in the same order. `row`: the dp coordinate whose
/// ranks continue the prompt. Several prompts are under way at the same time where there are several rows.
struct GenerationEvents {
  std::function<void(size_t prompt, int row)> begins = {};
  std::function<void(size_t prompt, int64_t token)> token = {};
  std::function<void(size_t prompt, int row, const GenerationResult&)> ends = {};
};

/// Continues all `prompts`, each of at least one id below the model's vocab_size, a row one prompt at a time: the next
/// prompt goes to the first row that is free. `options_of(prompt)` is called on the ranks of the row that continues the
/// prompt; it may be collective over tp. A text is the same on every mesh as far as rounding does: see Continuation.
///
/// Every rank of the mesh must call it, with the same prompts. Throws AgreedError on all of them when one row throws
/// AgreedError, with the number of its prompt, after the texts of all prompts before it.
void generate(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts,
              const std::function<GenerateOptions(size_t prompt)>& options_of, const GenerationEvents& events);

}  // namespace meshtrain
