#pragma once

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

/// Merges `part`, attention of the same queries to further keys, into `merged`, in place: with share = sigmoid(part.lse
/// - lse), out += share (part.out - out), lse = logaddexp. merged.out has the dtype of lse, part.out any. Shapes as in
/// AttentionResult; any strides, D contiguous.
void merge(const AttentionResult& merged, const AttentionResult& part);

}  // namespace meshtrain
