#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "mesh/box.h"
#include "runtime/trainer/trainer.h"

namespace meshtrain {

/// What a training run makes of one parameter: this rank's part, without padding.
struct TracedParameter {
  std::string name;
  std::vector<int64_t> global_shape;
  Box box;                   ///< where the part lies in the whole tensor
  std::string sharded_over;  ///< as Parameter's
  at::Tensor gradient;       ///< of the first step, before clipping; of fp32 or fp64; undefined when frozen
  at::Tensor movement;       ///< last weights minus first ones; of fp32 or fp64
};

/// What is compared of a training run: per step loss and norm of the gradients before clipping, and its parameters in
/// the order of the model.
struct Trace {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<TracedParameter> parameters;
  std::vector<std::string> cut_axes = {};  ///< whose ranks keep shards of the gradients, not each the whole

  /// Throws std::out_of_range for a name that is not there.
  const TracedParameter& at(const std::string& name) const;
};

/// One step of `trainer` on each batch, at a constant learning rate. Every rank of the trainer's mesh must call it.
Trace trace_steps(Trainer& trainer, const std::vector<StepBatch>& batches, double learning_rate);

}  // namespace meshtrain
