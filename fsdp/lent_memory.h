#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

// Tensors whose memory comes and goes while every view of them, autograd's saved ones included, stays valid: they share
// one storage, whose data pointer changes. Reading a tensor without memory crashes.

/// Returns a tensor [numel] that fills a storage of its own, without memory.
at::Tensor without_memory(int64_t numel, const at::TensorOptions& options);

/// Moves `tensor`, which fills its storage from the first element on, to `memory` (bytes, of the same device) from byte
/// `offset` on; it keeps `memory` alive. Its earlier memory is freed, or returned to its lender.
void lend_memory(const at::Tensor& tensor, const at::Tensor& memory, int64_t offset);

/// Leaves `tensor` without memory: its own is freed, lent memory is returned.
void take_memory(const at::Tensor& tensor);

}  // namespace meshtrain
