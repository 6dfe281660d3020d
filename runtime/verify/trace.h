#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "mesh/box.h"
#include "runtime/trainer/transformer_trainer.h"

namespace meshtrain {

/// The result of a training run for one parameter: this rank's part, without padding.
struct TracedParameter {
  std::string name;
  std::vector<int64_t> global_shape;
  Box box;                   ///< position of the part in the complete tensor
  std::string sharded_over;  ///< Parameter::sharded_over
  at::Tensor gradient;       ///< gradient of the first step, before clipping, in fp32 or fp64; undefined when frozen
  at::Tensor movement;       ///< last weights minus first ones, in fp32 or fp64
};

/// The results of a training run that are compared: loss and gradient norm before clipping of each step, and the
/// parameters in the order of the model.
struct Trace {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<TracedParameter> parameters;
  std::vector<std::string> cut_axes = {};  ///< axes whose ranks keep shards of the gradients, not complete copies

  /// Returns the parameter `name`. Throws std::out_of_range when there is none.
  const TracedParameter& at(const std::string& name) const;
};

/// Runs one step of `trainer` on each batch, at a constant learning rate. `where`: the trainer's ranks, for people.
/// Every rank of the trainer's mesh must call it.
Trace trace_steps(TransformerTrainer& trainer, const std::vector<StepBatch>& batches, double learning_rate,
                  const std::string& where);

}  // namespace meshtrain
