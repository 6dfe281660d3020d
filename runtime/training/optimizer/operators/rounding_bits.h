#pragma once

#include <cstdint>

#include "mesh/base/philox.h"

namespace meshtrain {

// The arithmetic of stochastic rounding, for the host and for kernels.

inline constexpr int64_t kElementsOfCounter = 8;  // which the 128 bits of one counter serve

/// Returns the random bits of a group of kElementsOfCounter elements that follow one another in the global tensor.
constexpr Counter rounding_bits(uint64_t group, uint64_t key, uint32_t step, uint32_t stream) {
  return philox({static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), step, stream + 1}, key);
}

/// Returns the 16 bits of the element at `index` in its group.
constexpr uint32_t bits_of(const Counter& bits, int64_t index) {
  const uint32_t word = index < 4 ? (index < 2 ? bits[0] : bits[1]) : (index < 6 ? bits[2] : bits[3]);
  return index % 2 == 0 ? word & 0xFFFF : word >> 16;
}

/// Returns the bf16 number, as its bits, that the fp32 number `bits` is rounded to by `random`, 16 bits; one that is
/// not finite is only cut, and a NaN stays one.
constexpr uint16_t rounded_by(uint32_t bits, uint32_t random) {
  const bool finite = (bits & 0x7F800000) != 0x7F800000;
  if (finite) return static_cast<uint16_t>((bits + random) >> 16);
  const bool is_nan = (bits & 0x007FFFFF) != 0;
  return static_cast<uint16_t>(bits >> 16 | (is_nan ? 0x40 : 0));
}

}  // namespace meshtrain
