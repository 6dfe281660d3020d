#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/training/checkpoint/training_state.h"
#include "runtime/training/trainer/options.h"

namespace meshtrain {

/// The losses and gradient norms of the last steps, and the rule that finds outliers among them. The rule is that of
/// SkipStepOptimizer in OLMo-core 2 (src/olmo_core/optim/skip_step_optimizer.py), in fp64: a number of this step is an
/// outlier when it is more than sigma standard deviations (unbiased) above the mean of those of the last `window`
/// steps, of which there must be window / 2 - 1 at least. Ranks that record the same numbers decide alike. Everything
/// is computed on the device, with tensors that stay where they are, so that a graph can record it.
class Outliers {
 public:
  enum Kind { kLoss = 1, kGradNorm = 2 };

  Outliers(const OutlierOptions& options, at::Device device);

  /// Returns the sum of the Kinds of a step's outliers, 0 without one: an fp64 scalar. Records nothing.
  at::Tensor judge(const at::Tensor& loss, const at::Tensor& grad_norm) const;
  /// Records a step, outliers too, unless it is `non_finite` (1 or 0).
  void record(const at::Tensor& loss, const at::Tensor& grad_norm, const at::Tensor& non_finite);

  /// Returns the recorded numbers, the oldest first. Waits for the device.
  TrainingState::RecentSteps state() const;
  /// Restores recorded numbers, the last `window` of them.
  void resume(const TrainingState::RecentSteps& state);

 private:
  int64_t window_;
  double sigma_;
  at::Tensor recent_;  // fp64 [2, window]: losses and norms, the newest last; zeros where nothing is recorded yet
  at::Tensor count_;   // fp64 scalar: the number of recorded steps, at most window
};

}  // namespace meshtrain
