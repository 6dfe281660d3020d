#pragma once

#include "runtime/training/model/heads_norm.h"
#include "runtime/training/model/operators/rms_norm.h"
#include "runtime/training/model/operators/rope.h"
#include "runtime/training/model/parallelism.h"
#include "tensor_parallel/linear.h"

namespace meshtrain {

/// Grouped-query self-attention with rotary positions, in the layers that have them.
class Attention {
 public:
  /// `layer`: the index of its block.
  Attention(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
            const at::TensorOptions& options);

  /// Computes attention: x [T, M] (its tp part under sequence parallel) -> the same shape; T = B * s tokens of
  /// `sequence`.
  at::Tensor forward(const LayerInput& x, const Sequence& sequence) const;
  std::vector<Parameter*> parameters();

 private:
  struct Projections {
    at::Tensor q, k, v;  // [B, s, heads of this tp rank, D]
  };
  Projections project(const LayerInput& x, const Sequence& sequence) const;
  const Rotary* rotary_of(const Sequence& sequence) const;
  at::Tensor mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequence& sequence) const;

  int64_t layer_;
  int64_t num_heads_;     // of this tp rank
  int64_t num_kv_heads_;  // of this tp rank
  int64_t head_dim_;
  Parallelism parallelism_;
  ColumnParallelLinear query_key_value_;
  RowParallelLinear output_;
  std::optional<RmsNorm> query_norm_, key_norm_;               // of each head
  std::optional<HeadsNorm> all_queries_norm_, all_keys_norm_;  // of all heads
  std::optional<Parameter> sinks_;                             // [num_heads_]
  bool is_rotary_, is_locally_rotary_;
  AttentionRule rule_;  // without the sinks, whose tensor may be bound to other memory
};

}  // namespace meshtrain
