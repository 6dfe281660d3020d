#pragma once

#include <functional>
#include <vector>

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// An action with its time, in the unit of the given seconds.
struct TimedAction {
  PipelineAction action;
  int rank = 0;
  double begin = 0, end = 0;
};

/// Runs the computing actions of all rows: each rank one after another, each action after those of other stages that it
/// needs. Messages are skipped; what comes from another rank arrives `message_seconds` after its end. Returns the
/// actions by their ends, then by rank: every one stands behind all that it needs. Throws std::logic_error, with the
/// rank and its next action, when rows wait for each other.
std::vector<TimedAction> run_clock(const PipelineSchedule& schedule,
                                   const std::function<double(const PipelineAction&)>& seconds,
                                   double message_seconds = 0);

}  // namespace meshtrain
