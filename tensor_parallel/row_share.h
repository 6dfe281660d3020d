#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "mesh/group.h"

namespace meshtrain {

// The division of rows for a layer that computes each row once, of a residual stream that every rank of tp has in full.
// Rank r of n has up to ceil(T/n) of the T rows, from row r ceil(T/n) on. Every rank of tp must call these functions
// and their backwards. Differentiable once. On one rank they return their argument.

/// Returns this rank's rows of x [T, ...]. The backward gathers the gradients of all rows, so that every rank has the
/// complete gradient of x.
at::Tensor own_rows(const at::Tensor& x, const Group& tp);

/// Gathers the rows of all ranks. Returns all `num_rows` rows, [T, ...]. The backward takes this rank's rows of the
/// gradient, which every rank has in full.
at::Tensor all_rows(const at::Tensor& own, int64_t num_rows, const Group& tp);

}  // namespace meshtrain
