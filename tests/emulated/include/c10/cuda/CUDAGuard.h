#pragma once

#include <c10/core/Device.h>

// The part of LibTorch's header that mesh/device/cuda/tensors.h uses.
namespace c10::cuda {

class CUDAGuard {
 public:
  explicit CUDAGuard(c10::Device) {}
};

}  // namespace c10::cuda
