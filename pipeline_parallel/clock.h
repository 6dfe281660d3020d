#pragma once

#include <functional>
#include <vector>

#include "pipeline_parallel/schedule.h"

namespace meshtrain {

/// An action with its begin and end, in the unit of the given seconds.
struct TimedAction {
  PipelineAction action;
  int rank = 0;
  double begin = 0, end = 0;
};

/// Simulates the computing actions of all rows. Each rank runs one action at a time, and each action waits for the
/// actions of other stages that it needs. Messages are skipped: a result from another rank arrives `message_seconds`
/// after its action ends. Returns the actions sorted by end, then by rank, so each comes after all that it needs.
/// Throws std::logic_error, with the rank and its next action, when rows wait for each other.
std::vector<TimedAction> run_clock(const PipelineSchedule& schedule,
                                   const std::function<double(const PipelineAction&)>& seconds,
                                   double message_seconds = 0);

}  // namespace meshtrain
