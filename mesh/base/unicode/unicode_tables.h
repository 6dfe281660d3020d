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

/// Returns one byte for each code point: the number of its general category, and the bits of unicode.cpp.
std::unique_ptr<uint8_t[]> expand_class_runs();
/// Returns one byte for each code point: its canonical combining class.
std::unique_ptr<uint8_t[]> expand_combining_runs();
/// Returns one byte for each code point: 1 when the package's Punctuation cuts at it, else 0.
std::unique_ptr<uint8_t[]> expand_punctuation_runs();
/// Returns the compatibility decompositions that differ from the canonical ones, end to end: a code point, the number
/// of code points of its complete decomposition, and these.
std::span<const uint32_t> compatibility_decompositions();
/// Returns the decompositions, ascending. Hangul syllables, which are computed, are left out.
std::span<const Decomposition> decompositions();

}  // namespace meshtrain
