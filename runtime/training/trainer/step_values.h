#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace meshtrain {

/// The inputs of a step besides its tokens, as one fp64 tensor on its device: one copy sends them, and a recorded step
/// reads other values in each replay.
struct StepInputs {
  /// Views `values`, fp64 [5], as the members below, in their order.
  explicit StepInputs(at::Tensor values);

  at::Tensor values;
  at::Tensor num_counted;  ///< counted tokens of the step over dp x cp
  at::Tensor learning_rate;
  at::Tensor loss_scale;
  at::Tensor stop;   ///< 1 or 0: this rank requests a stop
  at::Tensor saved;  ///< 1 or 0: this rank's part of a checkpoint is durable
};

/// The host's request for a step.
struct StepRequest {
  /// step() requires it: OptimizerOptions::learning_rate is only the peak of a schedule.
  double learning_rate = std::numeric_limits<double>::quiet_NaN();
  bool stop = false;     ///< this rank requests a stop
  bool saved = false;    ///< this rank's part of a checkpoint is durable
  bool measure = false;  ///< measures each parameter; the same on every rank
};

StepInputs make_step_inputs(int64_t num_counted, double loss_scale, const StepRequest& request, at::Device device);

/// The result of a step that the host has read.
struct StepResult {
  double loss = 0, grad_norm = 0;
  bool non_finite = false;
  double num_stop = 0, num_saved = 0;
  double own_loss_sum = 0;
  int outliers = 0;                    ///< the sum of Outliers::Kind; with one the step changed nothing
  std::vector<double> part_sums = {};  ///< of ModelPart::end_step()
};

/// The result of a step, still on the device: parts of one fp64 tensor, the same on every rank but for
/// own_loss_sum.
struct StepOutcome {
  /// Views `values`, fp64 [7 + n], as the members below, in their order.
  explicit StepOutcome(at::Tensor values);

  at::Tensor values;
  at::Tensor loss;                               ///< mean over the counted tokens of the complete step
  at::Tensor grad_norm;                          ///< norm over the complete model, before clipping
  at::Tensor non_finite;                         ///< 1 or 0: loss or norm is not finite, and the step changes nothing
  at::Tensor num_stop;                           ///< number of ranks that requested a stop
  at::Tensor num_saved;                          ///< number of ranks whose part of a checkpoint is durable
  at::Tensor own_loss_sum;                       ///< over the counted tokens of this rank
  at::Tensor outliers;                           ///< the sum of Outliers::Kind; with one the step changes nothing
  at::Tensor part_sums;                          ///< [n]: the sums of ModelPart::end_step(); undefined: none
  std::optional<double> optimizer_seconds = {};  ///< without waits for collectives; none on a GPU, which computes later
  double loss_scale = 1;                         ///< scale of the backward of this step
  at::Tensor parameters = {};                    ///< input of read_parameters(), when the step measured them

  /// Waits for the step and reads its values; copies of this outcome share them. All are 0 on the Meta device.
  StepResult read() const;

 private:
  std::shared_ptr<at::Tensor> host_values_ = std::make_shared<at::Tensor>();  // undefined until they are read
};

}  // namespace meshtrain
