#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace meshtrain {

/// Returns a Meta tensor [numel] that the Meta device's allocator does not count. The tensor stands for memory outside
/// the simulated device: host memory next to a GPU, or a file.
at::Tensor uncounted_meta(int64_t numel, at::ScalarType dtype);

/// Returns zeros [numel] in host memory that the GPU `device` itself reads and writes while it computes. The memory is
/// pinned and page-aligned, on the GPU's NUMA node where the system reports the node. The last tensor of this storage
/// frees the memory; no copy may use it then. Allocate it before training, because pinning takes long. Throws
/// std::runtime_error when the system has no room or refuses to pin; the message ends with `remedy`.
at::Tensor pinned_zeros(int64_t numel, at::ScalarType dtype, at::Device device, const std::string& remedy);

}  // namespace meshtrain
