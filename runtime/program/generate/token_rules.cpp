#include "runtime/program/generate/token_rules.h"

#include <algorithm>
#include <limits>
#include <set>

namespace meshtrain {
namespace {

constexpr double kExcluded = -std::numeric_limits<double>::infinity();

using Scores = std::vector<double>;
using Ids = std::vector<int64_t>;

void penalize_repetition(double penalty, const Ids& text, Scores& scores) {
  for (const int64_t id : std::set<int64_t>(text.begin(), text.end())) {
    double& score = scores[static_cast<size_t>(id)];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

/// Excludes the last token of each earlier run of `size` whose other tokens the text now ends with.
void exclude_repeated_runs(int64_t size, const Ids& text, Scores& scores) {
  if (std::ssize(text) < size) return;
  const auto prefix = text.end() - (size - 1);
  for (auto run = text.begin(); run + size <= text.end(); ++run) {
    if (std::equal(prefix, text.end(), run)) scores[static_cast<size_t>(run[size - 1])] = kExcluded;
  }
}

void exclude_bad_word(const Ids& word, const Ids& text, const Ids& stop, Scores& scores) {
  const size_t before = word.size() - 1;
  if (before == 0 && std::ranges::find(stop, word.front()) != stop.end()) return;
  if (before > text.size() || !std::equal(word.begin(), word.end() - 1, text.end() - std::ssize(word) + 1)) return;
  scores[static_cast<size_t>(word.back())] = kExcluded;
}

}  // namespace

void apply(const TokenRules& rules, const Ids& text, int64_t prompt, const Ids& stop, Scores& scores) {
  if (rules.repetition_penalty != 1) penalize_repetition(rules.repetition_penalty, text, scores);
  if (rules.no_repeat_ngram_size > 0) exclude_repeated_runs(rules.no_repeat_ngram_size, text, scores);
  for (const Ids& word : rules.bad_words_ids) exclude_bad_word(word, text, stop, scores);
  const int64_t length = std::ssize(text);
  if (length >= rules.min_length && length - prompt >= rules.min_new_tokens) return;
  for (const int64_t id : stop) {
    if (id < std::ssize(scores)) scores[static_cast<size_t>(id)] = kExcluded;
  }
}

}  // namespace meshtrain
