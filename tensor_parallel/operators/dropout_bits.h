#pragma once

#include <cmath>
#include <cstdint>

#include "mesh/base/philox.h"

namespace meshtrain {

// The arithmetic of dropout, for the host and for kernels.

inline constexpr int64_t kFeaturesOfCounter = 4;  // which the 128 bits of one counter serve

/// Returns the random bits of features [4 group, 4 group + 4) of a token.
constexpr Counter dropout_bits(int64_t token, int64_t group, uint64_t key) {
  return philox({static_cast<uint32_t>(token), static_cast<uint32_t>(static_cast<uint64_t>(token) >> 32),
                 static_cast<uint32_t>(group), 0},
                key);
}

/// Returns the bound below which a word of dropout_bits() sets its feature to zero.
inline uint32_t dropout_threshold(double probability) {
  return static_cast<uint32_t>(std::llround(probability * 0x1p32));
}

}  // namespace meshtrain
