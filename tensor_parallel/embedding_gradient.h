#pragma once

#include <ATen/core/Tensor.h>

#include "tensor_parallel/vocabulary_shard.h"

namespace meshtrain {

/// into[ids.local[t]] += dy[t] for the tokens t that are not absent: the gradient of a table's rows. Not
/// differentiable.
///
/// into [rows, M], contiguous; dy [T, M], of the dtype of `into`, or halves that are added to fp32; `ids` of [T]
/// tokens, whose `absent` may be undefined: none is.
///
/// The same bits every run. A row of an fp32 or fp64 `into` on the CPU takes its tokens one after another, in their
/// order. Halves, and all dtypes on CUDA, sum a row's tokens in fp32 first and add the sum, rounded once: a token that
/// occurs 10,000 times loses nothing. Takes no memory that grows with T * M on the CPU, and T * M / 4 bytes on CUDA;
/// the host waits for nothing, so the call may be recorded in a CUDA graph.
void add_embedding_gradient(const at::Tensor& into, const ShardIds& ids, const at::Tensor& dy);

}  // namespace meshtrain
