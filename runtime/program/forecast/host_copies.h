#pragma once

#include <cstdint>

namespace meshtrain {

/// While it exists, operators of this thread on tensors of the Meta device that stand for the host's hold for a moment
/// what LibTorch's kernels for the CPU copy: operands whose dtype is not that of the computation, and blocks of a
/// matrix that is transposed.
class HostCopies {
 public:
  HostCopies();
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

 private:
  uint64_t callback_;
};

}  // namespace meshtrain
