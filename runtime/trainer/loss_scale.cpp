#include "runtime/trainer/loss_scale.h"

#include <algorithm>
#include <limits>

namespace meshtrain {

LossScale::LossScale(const LossScaleRecipe& recipe) : recipe_(recipe), value_(recipe.fixed.value_or(recipe.initial)) {}

void LossScale::update(bool finite) {
  if (recipe_.fixed) return;
  if (!finite) {
    value_ = std::max(value_ * recipe_.backoff_factor, recipe_.min);
    num_finite_ = 0;
  } else if (++num_finite_ >= recipe_.growth_interval) {
    const double grown = value_ * recipe_.growth_factor;
    if (grown <= std::numeric_limits<float>::max()) value_ = grown;  // largest fp32: the backward starts in fp32
    num_finite_ = 0;
  }
}

std::optional<TrainingState::LossScale> LossScale::state() const {
  if (recipe_.fixed) return std::nullopt;
  return TrainingState::LossScale{value_, num_finite_};
}

void LossScale::resume(const TrainingState::LossScale& state) {
  if (recipe_.fixed) return;
  value_ = state.value;
  num_finite_ = state.num_finite;
}

}  // namespace meshtrain
