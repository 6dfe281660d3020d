#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshtrain {

/// Which of several sources each of an endless list of samples comes from, by their weights. Nothing is stored of the
/// list, and nothing is drawn: the sources are the leaves of a balanced binary tree, and at each inner node, of the
/// first n samples that come to it, round(n * left / (left + right)) go to its left. So of the first g samples source i
/// gets as many as its fraction of g says, to within ceil(log2(sources)) / 2 samples, for every g; and its own samples
/// are 0, 1, 2, ... in this order, each of them once. Weights count to one part in 2^30.
class Interleave {
 public:
  /// `weights`: one or more, each above 0.
  explicit Interleave(const std::vector<double>& weights);

  struct Place {
    size_t source;
    int64_t index;  ///< how many samples of the source came before
  };
  /// Where sample g, from 0 on, comes from. O(log sources).
  Place at(int64_t g) const;

  /// How many of the first `count` samples come from each source.
  std::vector<int64_t> counts(int64_t count) const;

 private:
  /// Of `count` samples of sources [begin, end), how many come from those before `middle`.
  int64_t left(int64_t count, size_t begin, size_t middle, size_t end) const;
  void add_counts(int64_t count, size_t begin, size_t end, std::vector<int64_t>& counts) const;

  std::vector<int64_t> sums_;  // [i]: weights of the sources before i, as whole numbers
};

}  // namespace meshtrain
