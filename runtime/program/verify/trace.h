#pragma once

#include <ATen/core/Tensor.h>

#include <set>
#include <string>
#include <vector>

#include "fsdp/parameter_group.h"
#include "mesh/box.h"
#include "mesh/parameter_index.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {

/// The result of a training run for one parameter: this rank's part, without padding. On a rank that lacks the
/// parameter, gradient and movement are undefined.
struct TracedParameter {
  std::string name;
  std::vector<int64_t> global_shape;
  Box box;              ///< position of the part in the complete tensor
  at::Tensor gradient;  ///< gradient of the first step, before clipping, in fp32 or fp64; undefined when frozen
  at::Tensor movement;  ///< last weights minus first ones, in fp32 or fp64
  bool trainable = true;
  Group parts = {};                     ///< ranks that hold the other parts of the complete tensor
  std::set<std::string> cut_axes = {};  ///< axes whose ranks keep other parts or shards of the gradient
  double first_length = 0;              ///< L2 norm of the part's first weights

  /// Returns false on a rank that lacks the parameter.
  bool held() const { return movement.defined(); }
};

/// The results of a training run that are compared: loss and gradient norm before clipping of each step, and all
/// parameters. These are in the order of the model and include those that this rank lacks.
struct Trace {
  std::vector<double> losses;
  std::vector<double> grad_norms;
  std::vector<TracedParameter> parameters;
};

/// A recorder of how training changes the parameters that this rank holds. Every rank of the groups must make the same
/// calls.
class ParameterTracer {
 public:
  /// Records the first weights. `index` and `groups` must outlive this.
  ParameterTracer(const ParameterIndex& index, const std::vector<ParameterGroup>& groups);
  /// Records the gradients; call once, when they have been reduced.
  void record_gradients();
  /// Returns all parameters of the index, with their movement from the first weights to the current ones. Call it once.
  std::vector<TracedParameter> finish();

 private:
  const ParameterIndex& index_;
  const std::vector<ParameterGroup>& groups_;
  std::vector<TracedParameter> parameters_;  // by number
};

/// Runs one step of `trainer` on each batch, at a constant learning rate. `where`: the trainer's ranks, for people.
/// Every rank of the trainer's mesh must call it.
Trace trace_steps(TransformerTrainer& trainer, const std::vector<StepBatch>& batches, double learning_rate,
                  const std::string& where);

}  // namespace meshtrain
