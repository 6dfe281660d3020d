#include "runtime/program/generate/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "mesh/agree.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_finite(double largest, uint64_t position) {
  if (std::isfinite(largest)) return;
  throw AgreedError("the logits of position " + std::to_string(position) +
                    " are not finite: the weights are not, or --precision is too narrow for them");
}

/// Chooses the token after `text`, which began with `prompt` tokens.
int64_t choose(const VocabularyLogits& logits, const GenerateOptions& options, const std::vector<int64_t>& text,
               size_t prompt, uint64_t sequence) {
  const SamplingOptions& sampling = options.sampling;
  const uint64_t position = text.size();
  if (sampling.temperature == 0 && !options.rules.any()) {
    const VocabularyLogits::LargestLogit largest = logits.largest();
    check_finite(largest.value, position);
    return largest.id;
  }
  const at::Tensor full = logits.full();
  check_finite(full.max().item().toDouble(), position);
  std::vector<double> scores = values_of(full);
  apply(options.rules, text, static_cast<int64_t>(prompt), options.stop, scores);
  const auto largest = std::max_element(scores.begin(), scores.end());
  if (std::isinf(*largest)) {
    throw AgreedError("no token is left for position " + std::to_string(position) +
                      ": no_repeat_ngram_size, bad_words_ids and the least length exclude all");
  }
  if (sampling.temperature == 0) return largest - scores.begin();
  return draw(candidates(scores, sampling), uniform_at(sampling.seed, sequence, position));
}

/// Runs all of `prompt` through the model, a bounded number of tokens at a time.
VocabularyLogits prefill(LanguageModel& model, const std::vector<int64_t>& prompt, int64_t at_once,
                         KeyValueCache& cache) {
  auto next = prompt.begin();
  while (prompt.end() - next > at_once) {
    model.next({next, next + at_once}, cache);
    next += at_once;
  }
  return model.next({next, prompt.end()}, cache);
}

}  // namespace

GenerationResult generate(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence,
                          const GenerateOptions& options, const std::function<void(int64_t)>& on_token) {
  KeyValueCache cache = model.make_cache(static_cast<int64_t>(prompt.size()) + options.max_tokens - 1);
  GenerationResult result;
  std::vector<int64_t> text = prompt;
  const auto take = [&](const VocabularyLogits& logits) {
    const int64_t token = choose(logits, options, text, prompt.size(), sequence);
    text.push_back(token);
    result.tokens.push_back(token);
    if (options.ends_text && options.ends_text(token)) result.end = TextEnd::Text;
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) result.end = TextEnd::Token;
    if (on_token) on_token(token);
  };
  const Clock::time_point start = Clock::now();
  take(prefill(model, prompt, options.prefill_tokens, cache));
  result.prefill_seconds = seconds_since(start);
  while (result.end == TextEnd::Length && static_cast<int64_t>(result.tokens.size()) < options.max_tokens) {
    take(model.next({result.tokens.back()}, cache));
  }
  result.decode_seconds = seconds_since(start) - result.prefill_seconds;
  return result;
}

}  // namespace meshtrain
