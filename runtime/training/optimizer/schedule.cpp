#include "runtime/training/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace meshtrain {

double learning_rate(const ScheduleOptions& schedule, double peak, int64_t step, int64_t num_steps) {
  step = std::max<int64_t>(step - schedule.delay, 1);
  if (step <= schedule.warmup_steps) {
    const double at = static_cast<double>(step), last = static_cast<double>(schedule.warmup_steps);
    const double risen = schedule.warmup_shape == WarmupShape::Log ? std::log(at) / std::log(std::max(last, 2.0))
                                                                   : (schedule.first_ratio ? at - 1 : at) / last;
    const double first = schedule.first_ratio.value_or(0);
    return peak * (first + (1 - first) * risen);
  }
  if (schedule.name == Schedule::Constant) return peak;

  const int64_t total = schedule.total_steps.value_or(num_steps);
  const int64_t first = schedule.name == Schedule::Wsd ? total - schedule.decay_steps : schedule.warmup_steps;
  const double length = static_cast<double>(std::max<int64_t>(total - first, 1));
  const double progress = std::clamp(static_cast<double>(step - 1 - first) / length, 0.0, 1.0);
  const double remaining =
      schedule.name == Schedule::Cosine ? (1 + std::cos(std::numbers::pi * progress)) / 2 : 1 - progress;
  return peak * (schedule.min_ratio + (1 - schedule.min_ratio) * remaining);
}

}  // namespace meshtrain
