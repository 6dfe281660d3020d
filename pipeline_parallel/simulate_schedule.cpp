#include "pipeline_parallel/simulate_schedule.h"

#include <algorithm>
#include <numeric>

#include "pipeline_parallel/clock.h"

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

double seconds_of_action(const PipelineAction& action, const StageSeconds& stage) {
  switch (action.kind) {
    case Kind::Forward:
      return stage.forward;
    case Kind::Backward:
      return stage.input_gradient + stage.weight_gradient;
    case Kind::InputGradient:
      return stage.input_gradient;
    case Kind::WeightGradient:
      return stage.weight_gradient;
    default:
      return 0;
  }
}

int largest_number_kept(const std::vector<PipelineAction>& row) {
  int kept = 0, most = 0;
  for (const PipelineAction& action : row) {
    if (action.kind == Kind::Forward) most = std::max(most, ++kept);
    if (action.kind == Kind::Backward || action.kind == Kind::WeightGradient) --kept;
  }
  return most;
}

}  // namespace

double SimulatedSchedule::bubble() const {
  const double computing = std::accumulate(busy.begin(), busy.end(), 0.0);
  return seconds > 0 ? 1 - computing / (seconds * static_cast<double>(busy.size())) : 0;
}

SimulatedSchedule simulate_schedule(const PipelineSchedule& schedule, const std::vector<StageSeconds>& stages,
                                    double message_seconds) {
  const auto seconds = [&](const PipelineAction& action) {
    return seconds_of_action(action, stages.at(static_cast<size_t>(action.stage)));
  };
  SimulatedSchedule run;
  run.busy.resize(schedule.rows.size());
  for (const TimedAction& each : run_clock(schedule, seconds, message_seconds)) {
    run.seconds = std::max(run.seconds, each.end);
    run.busy[static_cast<size_t>(each.rank)] += each.end - each.begin;
  }
  for (const auto& row : schedule.rows) run.peak.push_back(largest_number_kept(row));
  return run;
}

}  // namespace meshtrain
