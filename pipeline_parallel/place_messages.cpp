#include "pipeline_parallel/place_messages.h"

#include "pipeline_parallel/clock.h"

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

}  // namespace

void place_messages(PipelineSchedule& schedule) {
  const std::vector<TimedAction> order =
      run_clock(schedule, [](const PipelineAction& action) { return action.kind == Kind::Backward ? 2.0 : 1.0; });
  for (auto& row : schedule.rows) row.clear();
  const auto place = [&](const PipelineAction& action) {
    schedule.rows[static_cast<size_t>(schedule.rank_of(action.stage))].push_back(action);
  };
  for (const TimedAction& timed : order) {
    const auto [kind, stage, i] = timed.action;
    place(timed.action);
    const bool is_forward = kind == Kind::Forward;
    if (!is_forward && kind != Kind::Backward && kind != Kind::InputGradient) continue;
    const int other = is_forward ? stage + 1 : stage - 1;
    if (other < 0 || other == schedule.stages || schedule.rank_of(other) == schedule.rank_of(stage)) continue;
    place({is_forward ? Kind::SendActivation : Kind::SendGradient, stage, i});
    place({is_forward ? Kind::ReceiveActivation : Kind::ReceiveGradient, other, i});
  }
}

}  // namespace meshtrain
