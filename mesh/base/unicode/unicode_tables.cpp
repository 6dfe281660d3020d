#include "mesh/base/unicode/unicode_tables.h"

#include <algorithm>

#include "mesh/base/unicode/utf8.h"

namespace meshtrain {
namespace {

#include "mesh/base/unicode/unicode_data.inc"
#include "mesh/base/unicode/unicode_more_data.inc"

std::unique_ptr<uint8_t[]> expand(std::span<const uint32_t> runs) {
  auto values = std::make_unique<uint8_t[]>(kCodePoints);
  for (size_t i = 0; i < runs.size(); ++i) {
    const uint32_t end = i + 1 < runs.size() ? runs[i + 1] >> 8 : kCodePoints;
    std::fill(values.get() + (runs[i] >> 8), values.get() + end, static_cast<uint8_t>(runs[i]));
  }
  return values;
}

}  // namespace

std::unique_ptr<uint8_t[]> expand_class_runs() {
  return expand(kClassRuns);
}

std::unique_ptr<uint8_t[]> expand_combining_runs() {
  return expand(kCombiningRuns);
}

std::unique_ptr<uint8_t[]> expand_punctuation_runs() {
  return expand(kPunctuationRuns);
}

std::span<const uint32_t> compatibility_decompositions() {
  return kCompatibility;
}

std::span<const Decomposition> decompositions() {
  return kDecompositions;
}

}  // namespace meshtrain
