#pragma once

#include <cstdint>

namespace meshtrain {

/// A pseudo-random permutation of 0 .. size-1, computed number by number and never stored: the same on every machine. A
/// Feistel network over the next power of four, repeated until the result is inside (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", CT-RSA 2002).
class Permutation {
 public:
  /// `size`: at least 1. Different keys give different permutations.
  Permutation(int64_t size, uint64_t key);

  /// Returns the image of `index`, in 0 .. size-1.
  int64_t operator()(int64_t index) const;

 private:
  uint64_t size_;
  uint64_t key_;
  int half_bits_;  // the network permutes numbers of 2 * half_bits_ bits
};

/// Returns a well-mixed 64-bit hash of two numbers (the finaliser of SplitMix64).
uint64_t mix(uint64_t a, uint64_t b);

}  // namespace meshtrain
