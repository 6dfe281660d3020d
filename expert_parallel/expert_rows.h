#pragma once

#include <ATen/core/Tensor.h>

#include "tensor_parallel/products/grouped_product.h"

namespace meshtrain {

/// The (token, slot) pairs of a routing as R = T k rows, sorted by expert; rows of one expert by token, then by slot.
struct ExpertRows {
  at::Tensor slots;    ///< [R] int64: row r is the pair slots[r] = token * k + slot
  at::Tensor tokens;   ///< [R] int64: the token of each row
  at::Tensor rows;     ///< [T, k] int64: the row of each pair
  at::Tensor counts;   ///< [E] int64: rows of each expert
  GroupStarts starts;  ///< the rows of each expert, on the host

  int64_t num_slots() const { return rows.size(1); }
};

/// Sorts the pairs of choices [T, k] of `num_experts` experts. The host waits for the counts: the grouped product needs
/// them. On the Meta device experts have equal numbers of rows, which differ by one where they must. Throws
/// std::invalid_argument for a choice that is no expert's number, on the host.
ExpertRows sort_by_expert(const at::Tensor& choices, int64_t num_experts);

/// Returns row r = the token's row of x [T, M] for each row, [R, M]. Differentiable: the gradients of a token's rows
/// are summed in the order of its slots, in fp32 for halves, and rounded once. Keeps only `rows`.
at::Tensor rows_of_tokens(const at::Tensor& x, const ExpertRows& rows);

/// Returns the weights [T, k] of the rows, [R]. Differentiable.
at::Tensor weights_of_rows(const at::Tensor& weights, const ExpertRows& rows);

/// Returns [T, M]: the sum of each token's rows of y [R, M] in the order of its slots, in fp32 for halves and rounded
/// once. Differentiable. Keeps only `rows`.
at::Tensor sum_of_slots(const at::Tensor& y, const ExpertRows& rows);

}  // namespace meshtrain
