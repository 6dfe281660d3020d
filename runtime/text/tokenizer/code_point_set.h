#pragma once

#include <cstdint>
#include <vector>

#include "mesh/base/unicode/unicode.h"

namespace meshtrain {

/// A set of code points, one bit each.
class CodePointSet {
 public:
  CodePointSet();
  void add(uint32_t first, uint32_t last);
  void add(CategoryMask categories);
  void add_spaces();
  void add(const CodePointSet& other);
  void complement();
  bool has(uint32_t c) const { return (bits_[c >> 6] >> (c & 63) & 1) != 0; }
  bool operator==(const CodePointSet&) const = default;

 private:
  std::vector<uint64_t> bits_;
};

}  // namespace meshtrain
