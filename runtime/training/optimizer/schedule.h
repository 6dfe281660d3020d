#pragma once

#include <cstdint>

#include "runtime/training/optimizer/options.h"

namespace meshtrain {

/// Returns the learning rate of `step` (from 1) of `num_steps`, as torchtitan defines it. total_steps replaces
/// `num_steps`; later steps have min_ratio * peak, except for constant, which stays. Step k = max(step - delay, 1).
///
/// Warm-up, k <= W = warmup_steps, with r = first_ratio or 0:
///   linear                   k / W * peak
///   linear with first_ratio  (r + (1 - r) (k - 1) / W) * peak
///   log                      (r + (1 - r) ln k / ln max(W, 2)) * peak
///
/// The step after the warm-up has `peak`. Then the rate stays (constant), or falls along half a cosine (cosine) or a
/// line (linear). Both would reach min_ratio * peak one step after the last, so no step has a rate of 0. wsd (warm-up,
/// stable, decay) stays at `peak`, and falls along a line over the last decay_steps, the first of which has `peak`.
double learning_rate(const ScheduleOptions& schedule, double peak, int64_t step, int64_t num_steps);

}  // namespace meshtrain
