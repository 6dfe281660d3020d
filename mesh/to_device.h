#pragma once

#include <ATen/ATen.h>

namespace meshtrain {

/// `tensor` on `device`, itself where it is there: from the host to a GPU through pinned memory, in the order of the
/// stream, so that the host does not wait.
inline at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  const bool through_pinned = tensor.is_cpu() && device.is_cuda();
  return (through_pinned ? tensor.pin_memory() : tensor).to(device, /*non_blocking=*/through_pinned);
}

}  // namespace meshtrain
