#pragma once

#include <ATen/core/Tensor.h>

#include "context_parallel/attention_rule.h"

namespace meshtrain {

/// Attention of one block, forward and backward, on one device. Only this file and packed_attention.h call LibTorch's
/// own kernels; host_attention.h has ours for the CPU.
///
/// q [B, H, n, D], k and v [B, K, m, D] with H a multiple of K: the kernel shares heads and repeats nothing. fp64,
/// fp32, bf16 or fp16, on the CPU or the Meta device, and on CUDA where attention_choice.h has a kernel;
/// std::invalid_argument otherwise. Any strides; a tensor whose D is not contiguous is copied first, and so is the
/// output for a q that is not [B, n, H, D] in memory. Other pairs than all need n == m; anti-causal ones are computed
/// by the causal kernel, from copies in the opposite order. A window counts for causal pairs alone, with a softcap or
/// where flash_takes() q on CUDA; std::invalid_argument elsewhere, where blocks are tiled() first. Halves that are slow
/// on this processor, or have a softcap, are computed in fp32, and the results are fp32: the caller sums parts and
/// rounds once. Every query must see at least one key. Neither function records for autograd: callers are autograd
/// functions.

struct AttentionResult {
  at::Tensor out;  ///< [B, H, n, D], in memory [B, n, H, D]; of the dtype of q or, for halves, fp32
  at::Tensor lse;  ///< [B, H, n], log-sum-exp of the scaled scores: fp64 for fp64, fp32 otherwise
};

struct AttentionGradients {
  at::Tensor q, k, v;     ///< shapes of q, k and v, dtypes as above; in memory [B, n, H, D] and [B, m, K, D]
  at::Tensor sinks = {};  ///< [H]; of an AttentionCall alone, where the rule has sinks with a gradient
};

/// Returns an uninitialised tensor [B, heads, n, ...] like `like`, in memory [B, n, heads, ...].
at::Tensor empty_by_position(const at::Tensor& like, at::ScalarType dtype);
inline at::Tensor empty_by_position(const at::Tensor& like) {
  return empty_by_position(like, like.scalar_type());
}

AttentionResult attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Pairs pairs,
                       const AttentionRule& rule);

/// Computes gradients. `out` and `lse` are results over all keys of the queries; k and v may be a part of these keys.
/// The results are then this part's share of dq, and its dk and dv.
AttentionGradients attend_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const AttentionResult& attended, Pairs pairs,
                                   const AttentionRule& rule);

}  // namespace meshtrain
