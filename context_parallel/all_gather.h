#pragma once

#include <ATen/core/Tensor.h>

#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// attention() with all keys and values gathered on every rank: one all-gather forward; one more and one
/// reduce-scatter backward, since a rank keeps its own part of them only. Diagonals, which need local keys alone,
/// compute while these travel. On one rank nothing travels.
at::Tensor all_gather_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const SequenceLayout& layout, const Group& group, double scale);

}  // namespace meshtrain
