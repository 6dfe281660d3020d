#pragma once

#include <cstdint>

namespace meshtrain {

/// Elements of a range that are contiguous in their global tensor too.
struct ElementRun {
  int64_t offset;  ///< in the range
  int64_t numel;
  uint64_t key;   ///< of the parameter
  int64_t index;  ///< of the first, in the global tensor
};

}  // namespace meshtrain
