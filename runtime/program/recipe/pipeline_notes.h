#pragma once

#include <string>
#include <vector>

#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// Describes the pipeline of a run: its schedule, the layers of each stage, the micro-batches of a step, the bubble by
/// simulate_schedule() with FLOPs as times, and when gradients are reduced. Empty without a pipeline.
std::string pipeline_summary(const Recipe& recipe, const Decisions& decisions);

/// Returns warnings about a pipeline that waits most of the time, and about keys that have no effect without one.
std::vector<std::string> pipeline_warnings(const Recipe& recipe, const Decisions& decisions);

}  // namespace meshtrain
