#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "mesh/group.h"

namespace meshtrain {

/// Returns the number of tokens that an expert computes at most, of `tokens`: ceil(factor * k * tokens / E), k =
/// `top_k`.
int64_t expert_capacity(double factor, int64_t tokens, int64_t top_k, int64_t num_experts);

/// Returns [T, k] bool: the pairs beyond the capacity of their experts. An expert computes the first `capacity` tokens
/// that chose it, in the order of the micro-batch: which pairs are dropped does not depend on the mesh. `choices`: [T,
/// k], each expert at most once for a token. `positions`: [T] int64, the position of each token in the micro-batch.
/// `num_tokens`: of the micro-batch. `sharers`: the ranks that have its other tokens; each of them must call it. On the
/// Meta device nothing is dropped: undefined.
at::Tensor pairs_beyond(int64_t capacity, const at::Tensor& choices, const at::Tensor& positions, int64_t num_tokens,
                        int64_t num_experts, const Group& sharers);

}  // namespace meshtrain
