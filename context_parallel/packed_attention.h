#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

/// Lengths of n sequences that lie side by side, none of them empty, together as long as the tensors that hold them.
struct PackedLengths {
  at::Tensor queries;       ///< int32 [n + 1], contiguous: where each one's queries begin, and where the last one's end
  at::Tensor keys;          ///< the same of keys
  int64_t longest_queries;  ///< at least the longest of them
  int64_t longest_keys;
};

/// Attention inside each of n sequences, all in one call of LibTorch's variable-length flash attention. CUDA tensors
/// that takes_documents() says yes to (attention_choice.h), lengths on the same device; the host does not wait.
///
/// q [T, H, D], k and v [U, K, D] with H a multiple of K; a tensor whose D is not contiguous is copied first. `causal`
/// needs as many queries as keys in each sequence. Returns out [T, H, D], contiguous, in the dtype of q, and lse [H,
/// T], fp32, of the scaled scores.
Attended attend_packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const PackedLengths& lengths,
                       bool causal, double scale);

/// `attended`: over all the keys that the queries have, as in attend_backward(). Gradients in the shapes and dtype of
/// q, k and v, contiguous. LibTorch's kernel adds parts of dq by atomics, in no fixed order, unless deterministic
/// algorithms are asked for. It needs fp32 [T + 128 n, H, D] for n sequences, D rounded up to 32 (to 64 above 128), and
/// where heads share KV heads dk and dv of all H.
AttentionGradients attend_packed_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const Attended& attended, const PackedLengths& lengths,
                                          bool causal, double scale);

}  // namespace meshtrain
