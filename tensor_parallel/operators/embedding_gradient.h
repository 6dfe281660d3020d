#pragma once

#include <ATen/core/Tensor.h>

#include "tensor_parallel/vocabulary_shard.h"

namespace meshtrain {

/// Adds the gradient of a table's rows: into[ids.local[t]] += dy[t] for the tokens t that are not absent. Not
/// differentiable.
///
/// into: [rows, M], contiguous; dy: [T, M], in the dtype of `into`, or halves that are added to fp32; `ids`: of [T]
/// tokens; an undefined `absent` means that none is absent.
///
/// The bits are the same in every run. An fp32 or fp64 `into` on the CPU adds a row's tokens one after another, in
/// their order. Halves, and all dtypes on CUDA, sum a row's tokens in fp32 first and add the sum, rounded once: a token
/// that occurs 10,000 times loses nothing. On the CPU no temporary grows with T * M; on CUDA they take T * M / 4 bytes.
/// The host does not wait, so a CUDA graph can record the call.
void add_embedding_gradient(const at::Tensor& into, const ShardIds& ids, const at::Tensor& dy);

}  // namespace meshtrain
