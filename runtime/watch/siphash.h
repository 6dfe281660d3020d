#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace meshtrain {

using Secret = std::array<unsigned char, 16>;

/// SipHash-2-4 of `bytes` under `key` (Aumasson, Bernstein, 2012): nobody who lacks the key can make it for other
/// bytes, and it does not show the key.
uint64_t siphash(const Secret& key, std::string_view bytes);

}  // namespace meshtrain
