#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshtrain {

/// The source of each sample in an endless list of samples from several sources, chosen by weights. The list is neither
/// stored nor random: the sources are the leaves of a balanced binary tree, and of the first n samples that reach an
/// inner node, round(n * left / (left + right)) go to its left. So of the first g samples, for every g, source i has
/// its fraction of g to within ceil(log2(sources)) / 2 samples; its own samples come in the order 0, 1, 2, ..., each of
/// them once. Weights count to one part in 2^30.
class Interleave {
 public:
  /// `weights`: one or more, each above 0.
  explicit Interleave(const std::vector<double>& weights);

  struct Origin {
    size_t source;
    int64_t index;  ///< the number of samples of this source before it
  };
  /// Returns where sample g, from 0 on, comes from. O(log sources).
  Origin at(int64_t g) const;

  /// Returns how many of the first `count` samples come from each source.
  std::vector<int64_t> counts(int64_t count) const;

 private:
  /// Returns how many of `count` samples of sources [begin, end) come from those before `middle`.
  int64_t left(int64_t count, size_t begin, size_t middle, size_t end) const;
  void add_counts(int64_t count, size_t begin, size_t end, std::vector<int64_t>& counts) const;

  std::vector<int64_t> sums_;  // [i]: weights of the sources before i, as whole numbers
};

}  // namespace meshtrain
