#include "runtime/training/trainer/loss_scale.h"

#include <algorithm>
#include <limits>

namespace meshtrain {

LossScale::LossScale(const LossScaleOptions& options)
    : options_(options), value_(options.fixed.value_or(options.initial)) {}

void LossScale::update(bool finite) {
  if (options_.fixed) return;
  if (!finite) {
    value_ = std::max(value_ * options_.backoff_factor, options_.min);
    num_finite_ = 0;
  } else if (++num_finite_ >= options_.growth_interval) {
    const double grown = value_ * options_.growth_factor;
    if (grown <= std::numeric_limits<float>::max()) value_ = grown;  // largest fp32: the backward starts in fp32
    num_finite_ = 0;
  }
}

std::optional<TrainingState::LossScale> LossScale::state() const {
  if (options_.fixed) return std::nullopt;
  return TrainingState::LossScale{value_, num_finite_};
}

void LossScale::resume(const TrainingState::LossScale& state) {
  if (options_.fixed) return;
  value_ = state.value;
  num_finite_ = state.num_finite;
}

}  // namespace meshtrain
