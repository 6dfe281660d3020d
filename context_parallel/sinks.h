#pragma once

#include <ATen/core/Tensor.h>

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

// Attention sinks (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023; gpt-oss): each query
// head has a score that takes part in the softmax of all its queries and has no value. The kernels compute attention
// without them. Given the results with sinks, the kernels' backward is exact: it needs only exp(score - lse) and
// <grad_out, out>.

/// Adds `sinks`, [H] scores of any floating dtype, to results over all keys of their queries, in place:
///   out exp(lse - lse'),  lse' = logaddexp(lse, sink)
/// The sinks must be added once, after all parts of the keys are merged.
void add_sinks(const AttentionResult& attended, const at::Tensor& sinks);

/// Returns the gradient of `sinks` from the queries of `attended`, the results with sinks: [H], of the dtype of sinks,
///   - sum over queries of exp(sink - lse') <grad_out, out'>
/// Undefined when sinks are undefined or have no gradient.
at::Tensor sinks_gradient(const at::Tensor& grad_out, const AttentionResult& attended, const at::Tensor& sinks);

}  // namespace meshtrain
