#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace meshtrain {

/// A code point that is canonically equivalent to others: `second` is 0 where there is one. `composed`: NFC puts the
/// two together again.
struct Decomposition {
  uint32_t code_point;
  uint32_t first;
  uint32_t second;
  uint32_t composed;
};

/// One byte a code point: the general category's number, and bits (unicode.cpp).
std::unique_ptr<uint8_t[]> expand_class_runs();
/// One byte a code point: the canonical combining class.
std::unique_ptr<uint8_t[]> expand_combining_runs();
/// Ascending; Hangul syllables, which are computed, are left out.
std::span<const Decomposition> decompositions();

}  // namespace meshtrain
