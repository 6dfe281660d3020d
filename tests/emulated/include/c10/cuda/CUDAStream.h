#pragma once

#include <cuda_runtime_api.h>

// Of LibTorch's header what mesh/cuda/tensors.h uses.
namespace c10::cuda {

class CUDAStream {
 public:
  cudaStream_t stream() const { return nullptr; }
};

inline CUDAStream getCurrentCUDAStream() {
  return {};
}

}  // namespace c10::cuda
