#include "runtime/training/data/mixture.h"

#include "runtime/training/data/permutation.h"

namespace meshtrain {
namespace {

std::vector<double> weights_of(const DataOptions& options) {
  std::vector<double> weights;
  for (const MixedSource& source : options.sources()) weights.push_back(source.weight);
  return weights;
}

}  // namespace

Mixture::Mixture(const DataOptions& options, int64_t sequence_length, int64_t vocab_size, uint64_t seed)
    : interleave_(weights_of(options)) {
  for (const MixedSource& source : options.sources()) {
    const size_t i = sources_.size();
    const uint64_t own_seed = i == 0 ? seed : mix(seed, i);  // two entries of one file are shuffled differently
    sources_.emplace_back(source, sequence_length, vocab_size, own_seed, options.source_key(i));
  }
}

int64_t Mixture::num_samples() const {
  int64_t sum = 0;
  for (const Dataset& source : sources_) sum += source.num_samples();
  return sum;
}

Mixture::Location Mixture::locate(int64_t g) const {
  const auto [source, index] = interleave_.at(g);
  return {source, sources_[source].index_in_file(index)};
}

std::vector<int64_t> Mixture::read(int64_t g, int64_t* inputs, int64_t* labels) const {
  const auto [source, index] = interleave_.at(g);
  return sources_[source].read(index, inputs, labels);
}

}  // namespace meshtrain
