#pragma once

#include <cstdint>
#include <string>

#include "runtime/recipe/recipe.h"
#include "runtime/telemetry/metrics.h"

namespace meshtrain {

/// Whether a run goes on after steps whose loss or gradients were not finite, which changed nothing. Equal on all ranks
/// that see the same steps. Skipped under train.non_finite: skip, and under fp16_mixed where the loss is finite and
/// gradients alone overflowed; up to train.max_skipped in a row.
class SkippedSteps {
 public:
  /// Goes on after `steps_made` steps, the last `in_a_row` of which were skipped. `scales_loss`: Precision::loss_scale.
  SkippedSteps(const TrainRecipe& train, bool scales_loss, int64_t steps_made = 0, int64_t in_a_row = 0)
      : train_(train), scales_loss_(scales_loss), in_a_row_(in_a_row), has_trained_(steps_made > in_a_row) {}

  /// Skipped so far, up to the last step.
  int64_t in_a_row() const { return in_a_row_; }

  /// Of a step that the run has just made. Throws AgreedError when the run ends with it: step, loss, norm and the first
  /// parameter, if any, whose gradient is not finite.
  void judge(const StepMetrics& metrics);
  /// When the run has made its last step. Throws AgreedError when every step from the first on was skipped.
  void finish() const;

 private:
  std::string advice() const;

  TrainRecipe train_;
  bool scales_loss_;
  int64_t in_a_row_;
  bool has_trained_;
};

/// Whether metrics say of each step if it was skipped.
bool may_skip(const TrainRecipe& train, bool scales_loss);

}  // namespace meshtrain
