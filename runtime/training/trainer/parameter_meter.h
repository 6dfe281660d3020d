#pragma once

#include <vector>

#include "fsdp/parameter_group.h"
#include "mesh/parameter_index.h"
#include "runtime/training/metrics/step_metrics.h"

namespace meshtrain {

/// A meter of the gradient, weight and update of every trainable parameter of the model, around one update. Only an
/// element's owner counts it, so the results are those of one rank, for any mesh and sharding. Between before_update()
/// and after_update() the meter holds a copy of the weights that this rank owns.
class ParameterMeter {
 public:
  /// `groups`: the parameters that this rank holds; they must outlive this.
  ParameterMeter(const ParameterIndex& index, const std::vector<ParameterGroup>& groups, const Group& world);

  /// Call when gradients are reduced and not clipped yet.
  void before_update();
  /// Call after the weights have changed. Returns the squared norms of gradient, weight and update: fp64 [parameters,
  /// 3], the same on every rank. Collective over the world: one small all-reduce.
  at::Tensor after_update();

  /// Reads a result of after_update() on the host.
  std::vector<ParameterMetrics> read(const at::Tensor& squares) const;

 private:
  struct Piece {  // the part of one parameter that this rank owns
    int64_t row;  // of the result
    at::Tensor values, gradients;
    at::Tensor values_before = {};
    std::vector<at::Tensor> tensors() const { return {values, gradients}; }
  };

  Group world_;
  std::vector<std::string> names_;  // by row: the trainable parameters' names, in the order of the index
  std::vector<Piece> pieces_;
  at::Tensor squares_;
};

}  // namespace meshtrain
