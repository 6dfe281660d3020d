#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "mesh/group.h"

namespace meshtrain {

// The rows of a residual stream that every rank of tp has in full, divided for a layer that computes each row once: of
// T rows on n ranks, rank r has those from r ceil(T/n) on, ceil(T/n) of them or what is left. Every rank of tp must
// call these functions and their backwards. Differentiable once. On one rank they return their argument.

/// Returns this rank's rows of x [T, ...]. The backward gathers the gradients of all rows, so that every rank has the
/// gradient of x in full.
at::Tensor own_rows(const at::Tensor& x, const Group& tp);

/// Returns all `num_rows` rows, [T, ...], of which each rank gives its own. The backward takes this rank's rows of a
/// gradient that every rank has in full.
at::Tensor all_rows(const at::Tensor& own, int64_t num_rows, const Group& tp);

}  // namespace meshtrain
