#pragma once

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <initializer_list>

#include "mesh/device/aten.h"
#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

// The beginning of every CUDA sibling of an operator: its tensors as kernels take them.

/// Throws for a dtype that no kernel is compiled for: on CUDA there is no fp64.
inline Element element_of(const char* name, const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return Element::Float;
    case at::kBFloat16:
      return Element::BFloat16;
    case at::kHalf:
      return Element::Half;
    default:
      TORCH_CHECK(false, name, ": there is no CUDA kernel for ", tensor.scalar_type(), ": use fp32, bf16 or fp16");
  }
}

/// Throws where one of `others` is of another device or dtype than `tensor`.
inline void check_alike(const char* name, const at::Tensor& tensor, std::initializer_list<at::Tensor> others) {
  for (const at::Tensor& other : others) {
    TORCH_CHECK(other.device() == tensor.device() && other.scalar_type() == tensor.scalar_type(), name, ": ",
                other.scalar_type(), " on ", other.device(), " does not match ", tensor.scalar_type(), " on ",
                tensor.device());
  }
}

/// A guard that makes the device of `tensor` the current one while it lives; kernels run on its current stream.
class TensorDeviceGuard {
 public:
  explicit TensorDeviceGuard(const at::Tensor& tensor) : guard_(tensor.device()) {}
  cudaStream_t stream() const { return c10::cuda::getCurrentCUDAStream().stream(); }

 private:
  c10::cuda::CUDAGuard guard_;
};

}  // namespace meshtrain::cuda
