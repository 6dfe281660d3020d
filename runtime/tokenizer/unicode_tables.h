#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace meshtrain {

/// The canonical decomposition of a code point; `second` is 0 when there is only one. `composed`: NFC composes the two
/// again.
struct Decomposition {
  uint32_t code_point;
  uint32_t first;
  uint32_t second;
  uint32_t composed;
};

/// Returns one byte a code point: the general category's number, and bits (unicode.cpp).
std::unique_ptr<uint8_t[]> expand_class_runs();
/// Returns one byte a code point: the canonical combining class.
std::unique_ptr<uint8_t[]> expand_combining_runs();
/// Returns the decompositions, ascending. Hangul syllables, which are computed, are left out.
std::span<const Decomposition> decompositions();

}  // namespace meshtrain
