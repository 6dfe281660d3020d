#pragma once

#include <cstdint>

#include "runtime/program/forecast/simulation.h"

namespace meshtrain {

/// Returns the forecast for `repeats` repetitions more than that of `second`, which has one more than `first`.
StepForecast continued(const StepForecast& first, const StepForecast& second, int64_t repeats);

}  // namespace meshtrain
