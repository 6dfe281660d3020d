#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace meshtrain {

/// The counter of philox(). For an element it holds the index in the global tensor, so that every mesh draws the same;
/// its last word distinguishes the draws: 0 for first values, 1 and up for roundings.
using Counter = std::array<uint32_t, 4>;

/// Returns 128 random bits for a counter and a key: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as
/// 1, 2, 3", SC11.
constexpr Counter philox(Counter counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// Returns the key of a parameter: FNV-1a over the name, then the finaliser of splitmix64.
inline uint64_t philox_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325 ^ seed;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001B3;
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EB;
  return hash ^ (hash >> 31);
}

}  // namespace meshtrain
