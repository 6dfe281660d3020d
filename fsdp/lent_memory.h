#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

// Tensors whose memory comes and goes while every view of them, autograd's saved ones included, stays what it is: they
// share one storage, and its data pointer is what changes. Reading a tensor without memory crashes.

/// A tensor [numel] that fills a storage of its own, and has no memory yet.
at::Tensor without_memory(int64_t numel, const at::TensorOptions& options);

/// `tensor`, which fills its storage from the first element on, lies in `memory` (bytes, of the same device) from byte
/// `offset` on, and keeps it alive. What it had is freed, or no longer lent.
void lend_memory(const at::Tensor& tensor, const at::Tensor& memory, int64_t offset);

/// Leaves `tensor` without memory: its own is freed, what was lent is no longer used.
void take_memory(const at::Tensor& tensor);

}  // namespace meshtrain
