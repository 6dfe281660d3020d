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

/// Callbacks for the texts of all rows. Every rank gets the same calls in the same order. `row`: the dp coordinate
/// whose ranks continue the prompt. With several rows, several prompts are in progress at the same time.
struct GenerationEvents {
  std::function<void(size_t prompt, int row)> begins = {};
  std::function<void(size_t prompt, int64_t token)> token = {};
  std::function<void(size_t prompt, int row, const GenerationResult&)> ends = {};
};

/// Continues all `prompts`, each of at least one id below the model's vocab_size. A row continues one prompt at a time;
/// the next prompt goes to the first free row. `options_of(prompt)` is called on the ranks of the row that continues
/// the prompt; it may be collective over tp. A text is the same on every mesh up to rounding: see Continuation.
///
/// Every rank of the mesh must call it, with the same prompts. Throws AgreedError, with the number of the prompt, on
/// all ranks when one row throws AgreedError, after the texts of all prompts before it.
void generate(LanguageModel& model, const std::vector<std::vector<int64_t>>& prompts,
              const std::function<GenerateOptions(size_t prompt)>& options_of, const GenerationEvents& events);

}  // namespace meshtrain
