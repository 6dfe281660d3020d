#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tensor_parallel/products/layer_input.h"

namespace meshtrain {

/// The order of rows for experts: T tokens have k experts each, its slots. Row i belongs to slot order[i] of all T k
/// slots, and slot j's row is position[j]. Rows of one expert are consecutive, in the order of tokens.
struct TokenRouting {
  at::Tensor order, position;   ///< int64 [T k], each the inverse of the other
  std::vector<int64_t> counts;  ///< rows of each expert
  int64_t slots;                ///< k
};

/// Returns the routing of `experts`, int64 [T, k]: the numbers of each token's experts, below `num_experts`. The host
/// waits for the counts. On the Meta device all experts have about as many rows. No collective.
TokenRouting route_tokens(const at::Tensor& experts, int64_t num_experts);

/// Returns the rows of all experts, [T k, M], from the tokens x [T, M]. Differentiable; a token's gradient is the sum
/// over its slots, in their order. A layer that takes the rows keeps x, and takes the rows again in its backward.
LayerInput dispatch_rows(const at::Tensor& x, const TokenRouting& routing);

/// Returns the tokens [T, M] from the experts' results, rows [T k, M]: the sum over a token's slots, in their order, of
/// weight * row, rounded to the dtype of `rows`. weights: [T, k], of that dtype or a wider one. Differentiable in both.
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weights, const TokenRouting& routing);

}  // namespace meshtrain
