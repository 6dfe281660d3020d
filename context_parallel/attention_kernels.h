#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Attention of one block, forward and backward, on one device. With packed_attention.h the only callers of LibTorch's
/// own kernels.
///
/// q [B, H, n, D], k and v [B, K, m, D] with H a multiple of K: heads are shared in the kernel, nothing is repeated.
/// fp64, fp32, bf16 or fp16, on the CPU or the Meta device, and on CUDA what attention_choice.h has a kernel for;
/// std::invalid_argument for any other. Any strides; a tensor
/// whose D is not contiguous is copied first, and so is the output of a q that is not [B, n, H, D] in memory. `causal`
/// needs n == m and lets query i see keys up to i. Halves that the processor is slow at are computed in fp32, and
/// results come so: whoever adds parts of a sum up rounds it once. Every query must see at least one key. Neither
/// function records for autograd of its own accord: callers are autograd functions.

struct Attended {
  at::Tensor out;  ///< [B, H, n, D], in memory [B, n, H, D]; of the dtype of q or, for halves, fp32
  at::Tensor lse;  ///< [B, H, n], log-sum-exp of the scaled scores: fp64 for fp64, fp32 otherwise
};

struct AttentionGradients {
  at::Tensor q, k, v;  ///< shapes of q, k and v, dtypes as above; in memory [B, n, H, D] and [B, m, K, D]
};

/// Uninitialised, [B, heads, n, ...] as `like`, in memory [B, n, heads, ...].
at::Tensor empty_by_position(const at::Tensor& like, at::ScalarType dtype);
inline at::Tensor empty_by_position(const at::Tensor& like) {
  return empty_by_position(like, like.scalar_type());
}

Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale);

/// `out` and `lse` are those over all the keys that the queries have, of which k and v may be a part: the gradients
/// are then this part's share of dq, and dk and dv of the part.
AttentionGradients attend_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const Attended& attended, bool causal, double scale);

}  // namespace meshtrain
