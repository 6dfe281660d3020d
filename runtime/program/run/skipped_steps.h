#pragma once

#include <cstdint>
#include <string>

#include "runtime/program/recipe/recipe.h"
#include "runtime/program/telemetry/metrics.h"

namespace meshtrain {

/// The decision whether a run continues after a step that was skipped: one whose loss or gradients were not finite or
/// an outlier, or of which no label counts; such a step changes nothing. Equal on all ranks that see the same steps.
/// Steps that are not finite are skipped with train.non_finite: skip, and under fp16_mixed when the loss is finite and
/// only gradients overflowed; at most train.max_skipped in a row. Steps without a label are always skipped, outliers as
/// train.skip_outliers says; neither count among these.
class SkippedSteps {
 public:
  /// Continues after `steps_made` steps, the last `in_a_row` of which were skipped. `scales_loss`:
  /// TrainerOptions::loss_scale.
  SkippedSteps(const TrainRecipe& train, bool scales_loss, int64_t steps_made = 0, int64_t in_a_row = 0)
      : train_(train), scales_loss_(scales_loss), in_a_row_(in_a_row), has_trained_(steps_made > in_a_row) {}

  /// Returns the number of steps skipped in a row, up to the last step.
  int64_t in_a_row() const { return in_a_row_; }

  /// Call after each step. Throws AgreedError when the run ends with this step, with step, loss, norm and the first
  /// parameter, if any, whose gradient is not finite.
  void judge(const StepMetrics& metrics);
  /// Call after the last step. Throws AgreedError when every step since the first was skipped.
  void finish() const;

 private:
  std::string advice() const;

  TrainRecipe train_;
  bool scales_loss_;
  int64_t in_a_row_;
  int64_t num_without_label_ = 0;
  bool has_trained_;
};

/// Returns true when steps can be skipped: metrics then have a field for it.
bool may_skip(const TrainRecipe& train, bool scales_loss);

}  // namespace meshtrain
