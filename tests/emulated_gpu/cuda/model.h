#pragma once

#include <cstddef>

namespace meshtrain::emulated {

/// The GPU that a library stands in for. Each library over this runtime defines its own.
struct Model {
  const char* name;
  size_t bytes;  ///< of memory
  int multiprocessors;
  /// False when kernels do nothing: memory is then 0 until a copy writes it, and the host reads 0 for single numbers.
  bool computes;
};

const Model& model();

}  // namespace meshtrain::emulated
