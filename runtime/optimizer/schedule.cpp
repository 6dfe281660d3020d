#include "runtime/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace meshtrain {

double learning_rate(const ScheduleRecipe& schedule, double peak, int64_t step, int64_t num_steps) {
  if (step <= schedule.warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.name == "constant") return peak;

  const int64_t total = schedule.total_steps.value_or(num_steps);
  const int64_t first = schedule.name == "wsd" ? total - schedule.decay_steps : schedule.warmup_steps;
  const double length = static_cast<double>(std::max<int64_t>(total - first, 1));
  const double progress = std::clamp(static_cast<double>(step - 1 - first) / length, 0.0, 1.0);
  const double remaining = schedule.name == "cosine" ? (1 + std::cos(std::numbers::pi * progress)) / 2 : 1 - progress;
  return peak * (schedule.min_ratio + (1 - schedule.min_ratio) * remaining);
}

}  // namespace meshtrain
