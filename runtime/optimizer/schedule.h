#pragma once

#include <cstdint>

#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// Returns the learning rate of `step` (from 1) of `num_steps`, as torchtitan defines it. schedule.total_steps takes
/// the place of `num_steps`; the steps behind it have min_ratio * peak, but constant, which stays. Steps count from
/// behind `delay` steps, which have the rate of the first. The rate rises linearly over the first warmup_steps,
/// reaching `peak` at the last of them; with first_ratio r it is r + (1 - r) (k - 1) / warmup_steps of the peak in step
/// k, and for warmup_shape log r + (1 - r) ln k / ln warmup_steps. The step after them has `peak`; then it
/// stays (constant), or falls along half a cosine (cosine) or a line (linear), which would reach min_ratio * peak one
/// step after the last: so no step has a rate of 0. wsd (warm-up, stable, decay) stays and falls along a line over the
/// last decay_steps, the first of which has `peak`.
double learning_rate(const ScheduleRecipe& schedule, double peak, int64_t step, int64_t num_steps);

}  // namespace meshtrain
