#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "context_parallel/attention_kernels.h"
#include "context_parallel/attention_plan.h"
#include "context_parallel/blocks.h"

namespace meshtrain {

/// The pass in one kernel call: a result for each of its blocks, in their order, shaped as attend()'s. Tensors hold all
/// queries [B, H, s, D] and keys [B, K, n, D] that blocks count in.
std::vector<Attended> attend(const Pass& pass, const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                             double scale);
std::vector<AttentionGradients> attend_backward(const Pass& pass, const at::Tensor& grad_out, const at::Tensor& q,
                                                const at::Tensor& keys, const at::Tensor& values,
                                                const Attended& attended, double scale);

/// Attention of the local queries while their keys come block by block. Outputs are merged by their log-sum-exp, in its
/// dtype (fp32 for halves; merge.h).
///
/// "No key yet" is a state of its own, never a log-sum-exp: the kernels give 0, not minus infinity, to a query without
/// keys. A query's first block is the one diagonal that it is in; rectangles come after all diagonals.
class RunningAttention {
 public:
  /// q [B, H, s, D], all local queries.
  RunningAttention(const at::Tensor& q, double scale) : q_(q), scale_(scale) {}

  /// Attends the pass's queries to its keys. keys, values [B, K, n, D]: of the positions in which its blocks count.
  /// Throws std::logic_error for a rectangle before all queries have had their diagonals.
  void add(const Pass& pass, const at::Tensor& keys, const at::Tensor& values);

  /// All queries: out [B, H, s, D] in the dtype of q, in memory [B, s, H, D]; lse [B, H, s]. Throws std::logic_error
  /// when a query has had no key. Call once.
  Attended finish();

 private:
  bool complete() const { return num_started_ == q_.size(0) * q_.size(2); }
  void start(const ScoreBlock& block, Attended part);
  void merge(const ScoreBlock& block, const Attended& part);

  at::Tensor q_;
  double scale_;
  Attended merged_;
  int64_t num_started_ = 0;  // rows x queries that have had their diagonal
};

/// Gradients of the local queries while their keys come by once more, summed in fp32 (fp64 for fp64).
class RunningGradients {
 public:
  /// All local queries; `attended` over all of their keys.
  RunningGradients(const at::Tensor& grad_out, const at::Tensor& q, const Attended& attended, double scale);

  /// Adds the pass's share to the gradient of q, and that of its keys and values into key_gradients and
  /// value_gradients [B, K, n, D], as keys and values are.
  void add(const Pass& pass, const at::Tensor& keys, const at::Tensor& values, const at::Tensor& key_gradients,
           const at::Tensor& value_gradients);
  /// The same, with the gradients of each block's own keys [rows, K, m, D] returned.
  std::vector<AttentionGradients> compute(const Pass& pass, const at::Tensor& keys, const at::Tensor& values);

  /// The gradient of q in its dtype, in memory [B, s, H, D].
  at::Tensor queries() const { return dq_.to(q_.scalar_type()); }

 private:
  at::Tensor grad_out_;
  at::Tensor q_;
  Attended attended_;
  double scale_;
  at::Tensor dq_;
};

}  // namespace meshtrain
