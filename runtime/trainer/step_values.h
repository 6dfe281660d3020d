#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshtrain {

/// What a step takes besides tokens, as one fp64 tensor on its device: it gets there in one copy, and what was recorded
/// with it once can be run again with other numbers in it.
struct StepInputs {
  /// `values`: fp64 [5] as they stand here.
  explicit StepInputs(at::Tensor values);

  at::Tensor values;
  at::Tensor num_counted;  ///< counted tokens of the step over dp x cp
  at::Tensor learning_rate;
  at::Tensor loss_scale;
  at::Tensor stop;   ///< 1 or 0: this rank asks to stop
  at::Tensor saved;  ///< 1 or 0: it is done with its part of a checkpoint
};

/// What the host asks of a step.
struct StepRequest {
  double learning_rate = 0;
  bool stop = false;     ///< this rank asks to stop
  bool saved = false;    ///< this rank is done with its part of a checkpoint
  bool measure = false;  ///< each parameter is measured by itself; the same on every rank
};

StepInputs make_step_inputs(int64_t num_counted, double loss_scale, const StepRequest& request, at::Device device);

/// What the host reads of a step when it is through.
struct StepResult {
  double loss = 0, grad_norm = 0;
  bool non_finite = false;
  double num_stop = 0, num_saved = 0;
};

/// What all ranks know after a step, still on the device: fp64 scalars, the same on every rank, parts of one tensor.
struct StepOutcome {
  /// `values`: fp64 [5] as they stand here.
  explicit StepOutcome(at::Tensor values);

  at::Tensor values;
  at::Tensor loss;             ///< mean over the counted tokens of the whole step
  at::Tensor grad_norm;        ///< of the whole model, before clipping
  at::Tensor non_finite;       ///< 1 or 0: loss or norm is not finite, and the step changes nothing
  at::Tensor num_stop;         ///< number of ranks that asked to stop
  at::Tensor num_saved;        ///< number of ranks that said they are done with a checkpoint
  double loss_scale = 1;       ///< of its backward
  at::Tensor parameters = {};  ///< for read_parameters(), when they were to be measured

  /// Waits for the step.
  StepResult read() const;
};

}  // namespace meshtrain
