#pragma once

#include <cstdint>

#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// Returns the learning rate of `step` (from 1) of `num_steps`. It rises linearly over the first warmup_steps, reaching
/// `peak` at the last of them; then stays (constant), falls along half a cosine (cosine) or a line (linear) to
/// min_ratio * peak at the last step, or stays and falls along a line over the last decay_steps (wsd: warm-up, stable,
/// decay).
double learning_rate(const ScheduleRecipe& schedule, double peak, int64_t step, int64_t num_steps);

}  // namespace meshtrain
