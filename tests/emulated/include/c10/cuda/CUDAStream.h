#pragma once

#include <cuda_runtime_api.h>

// The part of LibTorch's header that mesh/device/cuda/tensors.h uses.
namespace c10::cuda {

class CUDAStream {
 public:
  cudaStream_t stream() const { return nullptr; }
};

inline CUDAStream getCurrentCUDAStream() {
  return {};
}

}  // namespace c10::cuda
