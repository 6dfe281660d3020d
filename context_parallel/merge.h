#pragma once

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

/// Attention of the same queries to further keys, `part`, is merged into `merged`, in place: with
/// share = sigmoid(part.lse - lse), out += share (part.out - out), lse = logaddexp. merged.out is of the dtype of lse,
/// part.out of any. Shapes as in Attended; any strides, D contiguous.
void merge(const Attended& merged, const Attended& part);

}  // namespace meshtrain
