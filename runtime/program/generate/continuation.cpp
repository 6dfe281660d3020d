#include "runtime/program/generate/continuation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "mesh/agree.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

void check_finite(double largest, uint64_t position) {
  if (std::isfinite(largest)) return;
  throw AgreedError("the logits of position " + std::to_string(position) +
                    " are not finite: either the weights are not finite, or --precision is too narrow for them");
}

}  // namespace

Continuation::Continuation(LanguageModel& model, const std::vector<int64_t>& prompt, uint64_t sequence,
                           GenerateOptions options)
    : model_(model),
      options_(std::move(options)),
      sequence_(sequence),
      text_(prompt),
      prompt_(prompt.size()),
      cache_(model.make_cache(static_cast<int64_t>(prompt.size()) + options_.max_tokens - 1)) {}

int64_t Continuation::choose(const VocabularyLogits& logits) const {
  const SamplingOptions& sampling = options_.sampling;
  const uint64_t position = text_.size();
  if (sampling.temperature == 0 && !options_.rules.any()) {
    const VocabularyLogits::LargestLogit largest = logits.largest();
    check_finite(largest.value, position);
    return largest.id;
  }
  const at::Tensor full = logits.full();
  check_finite(full.max().item().toDouble(), position);
  std::vector<double> scores = values_of(full);
  apply(options_.rules, text_, static_cast<int64_t>(prompt_), options_.stop, scores);
  const auto largest = std::ranges::max_element(scores);
  if (std::isinf(*largest)) {
    throw AgreedError("no token is left for position " + std::to_string(position) +
                      ": no_repeat_ngram_size, bad_words_ids and the minimum length exclude all");
  }
  if (sampling.temperature == 0) return largest - scores.begin();
  return draw(candidates(scores, sampling), uniform_at(sampling.seed, sequence_, position));
}

std::optional<TextEnd> Continuation::end_at(int64_t token) const {
  const bool ends_text = options_.ends_text && options_.ends_text(token);
  if (std::ranges::find(options_.stop, token) != options_.stop.end()) return TextEnd::Token;
  if (ends_text) return TextEnd::Text;
  if (std::ssize(text_) - static_cast<int64_t>(prompt_) == options_.max_tokens) return TextEnd::Length;
  return std::nullopt;
}

std::optional<int64_t> Continuation::advance() {
  const int64_t done = cache_.length(), size = std::ssize(text_);
  const int64_t next = std::min(done + options_.prefill_tokens, size);
  const VocabularyLogits logits = model_.next({text_.begin() + done, text_.begin() + next}, cache_);
  if (next < size) return std::nullopt;
  const int64_t token = choose(logits);
  text_.push_back(token);
  end_ = end_at(token);
  return token;
}

}  // namespace meshtrain
