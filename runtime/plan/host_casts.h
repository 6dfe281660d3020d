#pragma once

#include <cstdint>

namespace meshtrain {

/// While it exists, elementwise operators of this thread on tensors of the Meta device that stand for the host's hold
/// what they hold there: LibTorch's for the CPU copy an operand whose dtype is not that of the computation.
class HostCasts {
 public:
  HostCasts();
  ~HostCasts();
  HostCasts(const HostCasts&) = delete;
  HostCasts& operator=(const HostCasts&) = delete;

 private:
  uint64_t callback_;
};

}  // namespace meshtrain
