#pragma once

#include "runtime/model/parallelism.h"
#include "runtime/model/shape.h"
#include "tensor_parallel/linear.h"

namespace meshtrain {

/// The gated feed-forward layer: down(silu(gate(x)) * up(x)).
class FeedForward {
 public:
  FeedForward(const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
              const at::TensorOptions& options);

  /// x [T, M] (its tp part under sequence parallel) -> the same shape. `recompute`: what silu and product give is not
  /// kept for the backward.
  at::Tensor forward(const LayerInput& x, bool recompute) const;
  std::vector<Parameter*> parameters();

 private:
  ColumnParallelLinear gate_up_;
  RowParallelLinear down_;
};

}  // namespace meshtrain
