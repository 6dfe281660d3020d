#include "runtime/program/verify/made_samples.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "runtime/training/data/documents.h"
#include "runtime/training/data/permutation.h"

namespace meshtrain {
namespace {

void check_id(const char* key, const std::optional<int64_t>& id, int64_t vocab_size) {
  if (!id || (*id >= 0 && *id < vocab_size)) return;
  throw InputError(std::string(key) + " is " + std::to_string(*id) + ", token ids are 0 to " +
                   std::to_string(vocab_size - 1) + ": name one of them, or leave it out");
}

/// Returns a number in [0, 1).
double uniform(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Draws the ends of documents whose lengths are uniform in their logarithm, from 1 to all of `length`.
std::vector<int64_t> draw_ends(int64_t length, uint64_t key) {
  const double most = std::log(static_cast<double>(length));
  std::vector<int64_t> ends;
  for (int64_t end = 0, document = 0;; ++document) {
    end += static_cast<int64_t>(std::exp(uniform(mix(key, static_cast<uint64_t>(document))) * most));
    if (end > length) return ends;
    ends.push_back(end);
  }
}

/// Returns whether a generated loss mask counts label `position` of sample g: of every four samples one counts only its
/// last label, one its first quarter, two count four labels in five.
bool counts(int64_t g, int64_t position, int64_t length, uint64_t bits) {
  if (g % 4 == 1) return position == length - 1;
  if (g % 4 == 2) return position <= length / 4;
  return position == 0 || bits % 5 != 0;
}

}  // namespace

MadeSamples::MadeSamples(const SourceOptions& recipe, int64_t sequence_length, int64_t vocab_size, uint64_t seed)
    : documents_(recipe.documents),
      ignore_id_(recipe.ignore_id),
      some_ignored_(recipe.ignore_id || !recipe.loss_mask.empty()),
      boundary_ignored_(recipe.documents && !recipe.boundaries_count),
      sequence_length_(sequence_length),
      vocab_size_(vocab_size),
      seed_(seed) {
  if (documents_ != kDocumentsOfIndex) check_id("data.documents", documents_, vocab_size);
  check_id("data.ignore_id", ignore_id_, vocab_size);
}

std::vector<int64_t> MadeSamples::read(int64_t g, int64_t* inputs, int64_t* labels) const {
  const uint64_t sample = mix(seed_, static_cast<uint64_t>(g)), ends_key = mix(sample, 1), mask = mix(sample, 2);
  std::vector<int64_t> tokens(static_cast<size_t>(sequence_length_) + 1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint64_t vocabulary = static_cast<uint64_t>(vocab_size_);
    tokens[i] = static_cast<int64_t>(mix(sample, 3 + i) % vocabulary);
    if (tokens[i] == documents_) tokens[i] = (tokens[i] + 1) % vocab_size_;
  }
  std::vector<int64_t> ends;
  if (documents_ && g % 4 != 3) ends = draw_ends(sequence_length_ + 1, ends_key);
  for (const int64_t end : ends) {
    if (*documents_ != kDocumentsOfIndex) tokens[static_cast<size_t>(end - 1)] = *documents_;
  }
  if (!ends.empty() && ends.back() > sequence_length_) ends.pop_back();

  std::copy(tokens.begin(), tokens.end() - 1, inputs);
  std::copy(tokens.begin() + 1, tokens.end(), labels);
  for (int64_t i = 0; i < sequence_length_; ++i) {
    const bool masked = some_ignored_ && !counts(g, i, sequence_length_, mix(mask, static_cast<uint64_t>(i)));
    if (masked || labels[i] == ignore_id_) labels[i] = kIgnoredLabel;
  }
  return divide_sample(std::move(ends), sequence_length_, boundary_ignored_ ? labels : nullptr);
}

}  // namespace meshtrain
