#include "runtime/generate/generate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "mesh/agree.h"

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

int64_t choose(const VocabularyLogits& logits, const SamplingOptions& options, uint64_t sequence, uint64_t position) {
  if (options.temperature == 0) {
    const VocabularyLogits::Largest largest = logits.largest();
    check_finite(largest.value, position);
    return largest.id;
  }
  const at::Tensor whole = logits.whole();
  check_finite(whole.max().item().toDouble(), position);
  return draw(candidates(whole, options), uniform_at(options.seed, sequence, position));
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

Generated generate(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence,
                   const GenerateOptions& options, const std::function<void(int64_t)>& on_token) {
  KeyValueCache cache = model.make_cache(static_cast<int64_t>(prompt.size()) + options.max_tokens - 1);
  Generated result;
  const auto take = [&](const VocabularyLogits& logits) {
    const int64_t token = choose(logits, options.sampling, sequence, static_cast<uint64_t>(cache.length()));
    result.tokens.push_back(token);
    result.stopped = std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end();
    if (on_token) on_token(token);
  };
  const Clock::time_point start = Clock::now();
  take(prefill(model, prompt, options.prefill_tokens, cache));
  result.prefill_seconds = seconds_since(start);
  while (!result.stopped && static_cast<int64_t>(result.tokens.size()) < options.max_tokens) {
    take(model.next({result.tokens.back()}, cache));
  }
  result.decode_seconds = seconds_since(start) - result.prefill_seconds;
  return result;
}

}  // namespace meshtrain
