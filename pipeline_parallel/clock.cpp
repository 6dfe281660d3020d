#include "pipeline_parallel/clock.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

namespace meshtrain {
namespace {

using Kind = PipelineAction::Kind;

bool is_message(Kind kind) {
  return kind == Kind::SendActivation || kind == Kind::ReceiveActivation || kind == Kind::SendGradient ||
         kind == Kind::ReceiveGradient;
}

/// The ends of forwards and of gradients of inputs, by stage and micro-batch.
struct Ends {
  std::map<std::pair<int, int>, double> forwards, backwards;
};

/// Returns when an action can begin as far as other stages are concerned; nothing while one of them has not ended.
std::optional<double> ready(const PipelineAction& action, const PipelineSchedule& schedule, const Ends& ends,
                            double message_seconds) {
  const auto [kind, stage, i] = action;
  const bool is_forward = kind == Kind::Forward;
  if (!is_forward && kind != Kind::Backward && kind != Kind::InputGradient) return 0;
  const int other = is_forward ? stage - 1 : stage + 1;
  if (other < 0 || other == schedule.stages) return 0;
  const auto& of = is_forward ? ends.forwards : ends.backwards;
  const auto found = of.find({other, i});
  if (found == of.end()) return {};
  return found->second + (schedule.rank_of(other) == schedule.rank_of(stage) ? 0 : message_seconds);
}

}  // namespace

std::vector<TimedAction> run_clock(const PipelineSchedule& schedule,
                                   const std::function<double(const PipelineAction&)>& seconds,
                                   double message_seconds) {
  std::vector<std::vector<PipelineAction>> rows = schedule.rows;
  for (auto& row : rows) std::erase_if(row, [](const PipelineAction& each) { return is_message(each.kind); });
  std::vector<size_t> next(rows.size(), 0);
  std::vector<double> free(rows.size(), 0);
  std::vector<TimedAction> done;
  Ends ends;
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      for (; next[rank] < rows[rank].size(); ++next[rank]) {
        const PipelineAction& action = rows[rank][next[rank]];
        const std::optional<double> from = ready(action, schedule, ends, message_seconds);
        if (!from) break;
        const double begin = std::max(free[rank], *from);
        const double end = free[rank] = begin + seconds(action);
        done.push_back({action, static_cast<int>(rank), begin, end});
        if (action.kind == Kind::Forward) ends.forwards[{action.stage, action.micro_batch}] = end;
        if (action.kind == Kind::Backward || action.kind == Kind::InputGradient) {
          ends.backwards[{action.stage, action.micro_batch}] = end;
        }
        goes_on = true;
      }
    }
  }
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (next[rank] == rows[rank].size()) continue;
    throw std::logic_error("pipeline rank " + std::to_string(rank) + " waits forever before the " +
                           describe(rows[rank][next[rank]]));
  }
  std::ranges::stable_sort(done, {},
                           [](const TimedAction& each) { return std::tuple(each.end, each.begin, each.rank); });
  return done;
}

}  // namespace meshtrain
