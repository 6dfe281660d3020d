#pragma once

#include <cstdint>
#include <optional>

#include "runtime/training/checkpoint/training_state.h"
#include "runtime/training/trainer/options.h"

namespace meshtrain {

/// The factor of the loss before a backward, which keeps small gradients within the range of fp16. Gradients are
/// divided by it before they are used. The scale shrinks after a step whose gradients overflowed, and grows after a
/// number of finite steps in a row. A value type: ranks that make the same updates have equal scales. Micikevicius et
/// al., "Mixed precision training", 2018.
class LossScale {
 public:
  /// Constructs a scale that is always 1.
  LossScale() = default;
  explicit LossScale(const LossScaleOptions& options);

  double value() const { return value_; }
  bool changes() const { return !options_.fixed; }
  /// Updates the scale. Call after each step; `finite`: its gradients were finite.
  void update(bool finite);

  /// Returns the state for checkpoints; nullopt for a constant scale.
  std::optional<TrainingState::LossScale> state() const;
  /// Restores the state of a checkpoint. A constant scale does not change.
  void resume(const TrainingState::LossScale& state);

 private:
  LossScaleOptions options_ = {.fixed = 1};
  double value_ = 1;
  int64_t num_finite_ = 0;  // finite steps in a row since the scale changed
};

}  // namespace meshtrain
