#pragma once

#include <cstddef>

namespace meshtrain::cuda {

/// The sizes of a launch.
struct CopyLaunch {
  unsigned blocks_in_y = 1;
  unsigned threads = 128;
  std::size_t shared_bytes = 0;
};

/// Launches a kernel of at most 128 threads a block, which reads words of 16 bytes from `from` and writes them to `to`,
/// on the default stream. Throws when CUDA refuses it.
void copy_words(const float* from, float* to, const CopyLaunch& sizes);

}  // namespace meshtrain::cuda
