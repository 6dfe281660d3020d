#pragma once

#include <vector>

namespace meshtrain {

/// A tree over the ranks of a group: runs of `fan_out` consecutive ranks, runs of as many such runs, and so on. The
/// lowest rank of a run leads it. On level l the leaders of the runs of level l - 1 talk. Arithmetic alone, for any
/// number of ranks.
class RankTree {
 public:
  /// `fan_out`: at least 2.
  RankTree(int size, int fan_out) : size_(size), fan_out_(fan_out) {}

  /// Returns the number of levels that brings all ranks into one run; 0 for one rank.
  int levels() const;
  /// Returns the ranks that talk to `rank` on `level`, itself included, ascending: the first leads the others. Empty
  /// when `rank` has no part in that level.
  std::vector<int> members(int rank, int level) const;

 private:
  int size_;
  int fan_out_;
};

/// The ranks of a group as numbers of several digits, the lowest digit first: in step s a rank talks to those that
/// differ from it in digit s alone. The sizes of the digits multiply to the number of ranks: each is at most
/// `fan_out`, or a prime factor that is larger, so a group of n ranks has O(log n) partners for each rank where n has
/// small factors, and n - 1 where n is a large prime. Arithmetic alone.
class RankGrid {
 public:
  /// `fan_out`: at least 2.
  RankGrid(int size, int fan_out);

  int steps() const { return static_cast<int>(radices_.size()); }
  /// Returns how many values digit `step` has.
  int radix(int step) const { return radices_[static_cast<size_t>(step)]; }
  /// Returns the distance of ranks whose digits `step` differ by one. stride(steps()) is the number of ranks.
  int stride(int step) const { return strides_[static_cast<size_t>(step)]; }
  int digit(int rank, int step) const { return rank / stride(step) % radix(step); }
  int with_digit(int rank, int step, int digit) const {
    return rank + (digit - this->digit(rank, step)) * stride(step);
  }

 private:
  std::vector<int> radices_;
  std::vector<int> strides_;
};

}  // namespace meshtrain
