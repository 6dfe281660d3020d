#pragma once

#include <ATen/core/Tensor.h>

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

/// Attention of one block on the host in tiles whose products are oneDNN's, forward and backward, for processors with
/// AVX2: fp32, and bf16 with AVX-512 where the processor multiplies it. Scores above the diagonal of a causal block are
/// not computed beyond the tile that holds it. Results depend on no number of threads. A NaN or an infinity in a value
/// reaches all queries of its tile, also those before it.

/// Returns true when this processor has the loops of attention over elements of `dtype`.
bool has_attention_loops(at::ScalarType dtype);

/// Returns true when host_attention() computes queries and keys like these faster than LibTorch's kernel
/// (docs/benchmarks.md): q [B, H, n, D], k and v [B, K, m, D] of one dtype, on the host or its Meta device, D
/// contiguous.
bool host_attention_takes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Computes what attend() does, for tensors that host_attention_takes(). out [B, H, n, D] and lse [B, H, n] lie in
/// memory as [B, n, H, D] and [B, n, H].
AttentionResult host_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                               double scale);

/// Computes what attend_backward() does, for tensors that host_attention_takes(); `grad_out` and the output have the
/// dtype of q and lie in memory as [B, n, H, D]. FlashAttention-2 (Dao 2023), algorithm 2, with keys as the rows of a
/// tile.
AttentionGradients host_attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const AttentionResult& attended, bool causal,
                                           double scale);

}  // namespace meshtrain
