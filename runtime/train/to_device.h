#pragma once

#include <ATen/ATen.h>

namespace meshtrain {

/// A host tensor on `device`: to a GPU from pinned memory in the order of its stream, so that the host does not wait.
inline at::Tensor to_device(const at::Tensor& host, at::Device device) {
  return device.is_cuda() ? host.pin_memory().to(device, /*non_blocking=*/true) : host.to(device);
}

}  // namespace meshtrain
