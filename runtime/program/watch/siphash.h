#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace meshtrain {

using Secret = std::array<unsigned char, 16>;

/// Computes SipHash-2-4 of `bytes` under `key` (Aumasson, Bernstein, 2012): without the key nobody can compute it for
/// other bytes, and it does not reveal the key.
uint64_t siphash(const Secret& key, std::string bytes);

}  // namespace meshtrain
