#pragma once

#include "runtime/training/model/parallelism.h"
#include "runtime/training/model/pieces.h"
#include "runtime/training/model/shape.h"
#include "tensor_parallel/linear.h"

namespace meshtrain {

/// The gated feed-forward layer: down(activation(gate(x)) * up(x)).
class FeedForward {
 public:
  /// `features`: between the two products.
  FeedForward(const std::string& name, const ModelShape& shape, int64_t features, const Parallelism& parallelism,
              const at::TensorOptions& options);

  /// Computes the layer: x [T, M] (its tp part under sequence parallel) -> the same shape. `recompute`: the backward
  /// computes activation(gate(x)) * up(x) again instead of keeping it. `tokens`: Sequence::tokens.
  at::Tensor forward(const LayerInput& x, bool recompute, const at::Tensor& tokens) const;
  std::vector<Parameter*> parameters();

 private:
  ColumnParallelLinear gate_up_;
  RowParallelLinear down_;
  Activation activation_;
};

}  // namespace meshtrain
