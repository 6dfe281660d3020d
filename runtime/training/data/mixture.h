#pragma once

#include <cstdint>
#include <vector>

#include "runtime/training/data/dataset.h"
#include "runtime/training/data/interleave.h"
#include "runtime/training/data/options.h"
#include "runtime/training/data/samples.h"

namespace meshtrain {

/// The samples of a run: of one token file, or of several in turns by their weights (Interleave). Each
/// source repeats its own samples epoch by epoch, in an order of its own when it is shuffled.
class Mixture final : public Samples {
 public:
  /// Opens the sources. Throws InputError as Dataset does, for any of them.
  Mixture(const DataOptions& options, int64_t sequence_length, int64_t vocab_size, uint64_t seed);

  const std::vector<Dataset>& sources() const { return sources_; }
  /// Returns the number of samples in all files.
  int64_t num_samples() const;

  struct Location {
    size_t source;
    int64_t sample;  ///< index in its file
    auto operator<=>(const Location&) const = default;
  };
  /// Returns the source of sample g and its index there, which depend on g, the files' lengths, the weights and the
  /// seed alone.
  Location locate(int64_t g) const;

  /// Returns how many of the first `count` samples come from each source.
  std::vector<int64_t> counts(int64_t count) const { return interleave_.counts(count); }

  std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const override;

 private:
  std::vector<Dataset> sources_;
  Interleave interleave_;
};

}  // namespace meshtrain
