#pragma once

#include <vector>

#include "mesh/group.h"
#include "runtime/telemetry/metrics.h"
#include "runtime/trainer/ownership.h"

namespace meshtrain {

/// Gradient, weight and update of every trainable parameter, around one update. Each element is counted once, by its
/// owner, so the numbers are those of one rank, whatever mesh and shards. Between the two calls there is a copy of the
/// weights that this rank owns.
class ParameterMeter {
 public:
  /// `owned`: of owned_ranges(); `units` outlive this.
  ParameterMeter(const std::vector<OwnedRange>& owned, const std::vector<Unit>& units, const Group& world);

  /// Gradients are reduced, and not clipped yet.
  void before_update();
  /// Weights have been changed. Squares of lengths of gradient, weight and update: fp64 [parameters, 3], the same on
  /// every rank. Collective over the world: one small all-reduce.
  at::Tensor after_update();

  /// What a result of after_update() says, read on the host.
  std::vector<ParameterMetrics> read(const at::Tensor& squares) const;

 private:
  struct Piece {  // what this rank owns of one parameter
    int64_t parameter;
    at::Tensor values, gradients;
    at::Tensor values_before = {};
    std::vector<at::Tensor> tensors() const { return {values, gradients}; }
  };

  Group world_;
  std::vector<std::string> names_;
  std::vector<Piece> pieces_;
  at::Tensor squares_;
};

}  // namespace meshtrain
