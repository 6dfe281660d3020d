#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "context_parallel/attention_kernels.h"

namespace meshtrain {

/// The lengths of n adjacent sequences. None is empty, and their sum is the length of the tensors that hold them.
struct PackedLengths {
  at::Tensor queries;  ///< int32 [n + 1], contiguous: the begin of each sequence's queries, and the end of the last
  at::Tensor keys;     ///< the same for keys
  int64_t longest_queries;  ///< at least the number of queries in the longest sequence
  int64_t longest_keys;
};

/// Computes attention inside each of n sequences, in one call of LibTorch's variable-length flash attention. Takes CUDA
/// tensors for which flash_takes() is true (attention_choice.h), with lengths on the same device; the host does not
/// wait.
///
/// q [T, H, D], k and v [U, K, D] with H a multiple of K; a tensor whose D is not contiguous is copied first. `causal`
/// needs as many queries as keys in each sequence; `rule.window` counts for causal calls alone. Returns out [T, H, D],
/// contiguous, in the dtype of q, and lse [H, T], fp32, of the scaled scores.
AttentionResult attend_packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const PackedLengths& lengths, bool causal, const AttentionRule& rule);

/// Computes gradients in the shapes and dtype of q, k and v, contiguous. `attended`: results over all keys of the
/// queries, as in attend_backward(). LibTorch's kernel sums parts of dq with atomics, in no fixed order, unless
/// deterministic algorithms are requested. It needs temporaries of fp32 [T + 128 n, H, D] for n sequences, D rounded up
/// to 32 (to 64 above 128), and when heads share KV heads dk and dv of all H heads.
AttentionGradients attend_packed_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionResult& attended,
                                          const PackedLengths& lengths, bool causal, const AttentionRule& rule);

}  // namespace meshtrain
