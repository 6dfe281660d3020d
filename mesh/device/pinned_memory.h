#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace meshtrain {

/// Returns a tensor [numel] of the Meta device that its allocator does not count. It stands for memory elsewhere than
/// on the device that the Meta device stands for: the host's beside a GPU, or a file.
at::Tensor uncounted_meta(int64_t numel, at::ScalarType dtype);

/// Returns zeros [numel] in memory of the host that the GPU `device` reads and writes itself, while it computes. The
/// memory is pinned, page-aligned, and lies on the GPU's NUMA node where the system says which that is. Freed with the
/// last tensor of this storage, when no copy uses it any more. Allocate it before training: it takes long. Throws
/// std::runtime_error when the system has no room, or refuses to pin.
/// The message ends with `remedy`.
at::Tensor pinned_zeros(int64_t numel, at::ScalarType dtype, at::Device device, const std::string& remedy);

}  // namespace meshtrain
