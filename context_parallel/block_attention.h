#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "context_parallel/attention_kernels.h"
#include "context_parallel/blocks.h"
#include "context_parallel/kernel_calls.h"

namespace meshtrain {

/// Makes the kernel call and returns a result for each of its blocks, in their order, with the shapes of attend().
/// Takes the window from the blocks instead of `rule.window`. The tensors hold all queries [B, H, s, D] and keys [B, K,
/// n, D] that the positions of the blocks refer to.
std::vector<AttentionResult> attend(const KernelCall& call, const at::Tensor& q, const at::Tensor& keys,
                                    const at::Tensor& values, const AttentionRule& rule);
std::vector<AttentionGradients> attend_backward(const KernelCall& call, const at::Tensor& grad_out, const at::Tensor& q,
                                                const at::Tensor& keys, const at::Tensor& values,
                                                const AttentionResult& attended, const AttentionRule& rule);

/// Attention of the local queries, which receives their keys block by block. Outputs are merged by their log-sum-exp,
/// in its dtype (fp32 for halves; merge.h).
///
/// A query without keys so far has its own state, never a log-sum-exp: the kernels return 0, not minus infinity, for a
/// query without keys. The first block of a query is its only diagonal; rectangles follow after all diagonals.
class RunningAttention {
 public:
  /// q [B, H, s, D]: all local queries.
  RunningAttention(const at::Tensor& q, const AttentionRule& rule) : q_(q), rule_(rule) {}

  /// Attends the call's queries to its keys. keys, values [B, K, n, D]: the positions that its blocks refer to. Throws
  /// std::logic_error for a rectangle before the diagonals of all queries.
  void add(const KernelCall& call, const at::Tensor& keys, const at::Tensor& values);

  /// Returns the results of all queries, with the sinks of the rule: out [B, H, s, D] in the dtype of q, in memory [B,
  /// s, H, D]; lse [B, H, s]. Throws std::logic_error when a query has had no key. Call once.
  AttentionResult finish();

 private:
  bool complete() const { return num_started_ == q_.size(0) * q_.size(2); }
  void start(const ScoreBlock& block, AttentionResult part);
  void merge(const ScoreBlock& block, const AttentionResult& part);

  at::Tensor q_;
  AttentionRule rule_;
  AttentionResult merged_;
  int64_t num_started_ = 0;  // rows x queries whose diagonal is done
};

/// Gradients of the local queries, which receives their keys a second time; summed in fp32 (fp64 for fp64).
class RunningGradients {
 public:
  /// Takes all local queries, and `attended`, the results over all of their keys.
  RunningGradients(const at::Tensor& grad_out, const at::Tensor& q, const AttentionResult& attended,
                   const AttentionRule& rule);

  /// Adds the call's share to the gradient of q, and the gradients of its keys and values to key_gradients and
  /// value_gradients [B, K, n, D], which have the shape of keys and values.
  void add(const KernelCall& call, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& key_gradients,
           const at::Tensor& value_gradients);
  /// Adds the call's share to the gradient of q, and returns the gradients of each block's own keys [rows, K, m, D].
  /// Blocks of one tile.
  std::vector<AttentionGradients> compute(const KernelCall& call, const at::Tensor& keys, const at::Tensor& values);

  /// Returns the gradient of q in its dtype, in memory [B, s, H, D].
  at::Tensor queries() const { return dq_.to(q_.scalar_type()); }

 private:
  at::Tensor grad_out_;
  at::Tensor q_;
  AttentionResult attended_;
  AttentionRule rule_;
  at::Tensor dq_;
};

}  // namespace meshtrain
