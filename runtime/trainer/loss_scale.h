#pragma once

#include <cstdint>
#include <optional>

#include "runtime/checkpoint/training_state.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// What the start of a backward is multiplied by, so that fp16 holds small gradients; they are divided by it before
/// anyone looks at them. It shrinks after a step whose gradients overflowed, and grows after so many that did not in a
/// row. A value: equal on all ranks that update it alike. Micikevicius et al., "Mixed precision training", 2018.
class LossScale {
 public:
  /// 1, always.
  LossScale() = default;
  explicit LossScale(const LossScaleRecipe& recipe);

  double value() const { return value_; }
  bool changes() const { return !recipe_.fixed; }
  /// After each step: whether its gradients were finite.
  void update(bool finite);

  /// What changes of it, for checkpoints; none of a scale that never does.
  std::optional<TrainingState::LossScale> state() const;
  /// As it was; a scale that never changes stays what it is.
  void resume(const TrainingState::LossScale& state);

 private:
  LossScaleRecipe recipe_ = {.fixed = 1};
  double value_ = 1;
  int64_t num_finite_ = 0;  // in a row, since the scale changed
};

}  // namespace meshtrain
