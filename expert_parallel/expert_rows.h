#pragma once

#include <ATen/core/Tensor.h>

#include "tensor_parallel/products/grouped_product.h"

namespace meshtrain {

/// The (token, slot) pairs of a routing as R rows, sorted by expert, then by token, then by slot. R = T k unless pairs
/// are dropped.
struct ExpertRows {
  at::Tensor slots;    ///< [R] int64: row r is the pair slots[r] = token * k + slot
  at::Tensor tokens;   ///< [R] int64: the token of each row
  at::Tensor rows;     ///< [T, k] int64: the row of each pair; any row for a dropped pair
  at::Tensor dropped;  ///< [T, k] bool: pairs without a row; undefined: none
  at::Tensor counts;   ///< [E] int64: the number of rows of each expert
  GroupStarts starts;  ///< the rows of each expert, on the host

  int64_t num_slots() const { return rows.size(1); }
};

/// Sorts the pairs of choices [T, k] of `num_experts` experts. A pair whose choice is `num_experts` is dropped: it has
/// no row. The host waits for the counts, because the grouped product needs them. On the Meta device all experts have
/// the same number of rows, to within one, and no pair is dropped. On the host another choice that is not the number of
/// an expert throws std::invalid_argument.
ExpertRows sort_by_expert(const at::Tensor& choices, int64_t num_experts);

/// Returns [R, M]: for each row the row of its token in x [T, M]. Differentiable: the gradients of a token's rows are
/// summed in the order of its slots, in fp32 for halves, and rounded once. The backward needs only `rows`.
at::Tensor rows_of_tokens(const at::Tensor& x, const ExpertRows& rows);

/// Returns [R]: the weight of each row, from weights [T, k]. Differentiable.
at::Tensor weights_of_rows(const at::Tensor& weights, const ExpertRows& rows);

/// Returns [T, k]: for each pair the element of its row in `of_rows` [R]; 0 for dropped pairs. Not differentiable.
at::Tensor weights_of_pairs(const at::Tensor& of_rows, const ExpertRows& rows);

/// Returns [T, M]: the sum of each token's rows of y [R, M] in the order of its slots, in fp32 for halves and rounded
/// once; dropped pairs add nothing. Differentiable. The backward needs only `rows`.
at::Tensor sum_of_slots(const at::Tensor& y, const ExpertRows& rows);

}  // namespace meshtrain
