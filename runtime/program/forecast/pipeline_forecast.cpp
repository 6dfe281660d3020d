#include "runtime/program/forecast/pipeline_forecast.h"

#include <algorithm>
#include <map>
#include <utility>

#include "pipeline_parallel/clock.h"
#include "runtime/program/forecast/rank_steps.h"

namespace meshtrain {
namespace {

/// The stages of a rank: the layers of each, and where they begin in the period of the model's layers.
using Division = std::vector<std::pair<int64_t, int64_t>>;

std::vector<Division> divisions_of_ranks(const Decisions& decisions) {
  const auto pp = static_cast<size_t>(decisions.layout.size(kPipelineAxis));
  const int64_t period = kind_period(decisions);
  std::vector<Division> ranks(pp);
  int64_t begin = 0;
  for (size_t stage = 0; stage < decisions.pipeline.blocks.size(); ++stage) {
    const int64_t layers = decisions.pipeline.blocks[stage];
    ranks[stage % pp].emplace_back(layers, begin % period);
    begin += layers;
  }
  return ranks;
}

/// The recorded actions of the ranks of a pipeline.
class RecordedActions {
 public:
  RecordedActions(const PipelineSchedule& schedule, const std::vector<const StepForecast*>& ranks)
      : schedule_(schedule), ranks_(ranks) {
    for (const StepForecast* rank : ranks) {
      int count = 0;
      for (const auto& [action, seconds] : rank->actions.actions) count = std::max(count, action.micro_batch + 1);
      counts_.push_back(count);
    }
  }

  /// Returns the seconds of an action. A step that was simulated with fewer micro-batches has those of its first and
  /// its last, and the one before stands for all between.
  double seconds(const PipelineAction& action) const {
    const auto rank = static_cast<size_t>(schedule_.rank_of(action.stage));
    const auto& recorded = ranks_[rank]->actions.actions;
    const int own = recorded.begin()->first.stage % schedule_.ranks;
    const int count = counts_[rank], stage = action.stage / schedule_.ranks * schedule_.ranks + own;
    const bool is_last = action.micro_batch + 1 == schedule_.micro_batches;
    const int i = is_last ? count - 1 : std::min(action.micro_batch, std::max(count - 2, 0));
    return recorded.at({action.kind, stage, i});
  }

 private:
  const PipelineSchedule& schedule_;
  const std::vector<const StepForecast*>& ranks_;
  std::vector<int> counts_;  // of micro-batches, by rank
};

TimeForecast mean_of(const std::vector<const StepForecast*>& ranks) {
  TimeForecast mean;
  const auto share = 1 / static_cast<double>(ranks.size());
  for (const StepForecast* rank : ranks) {
    for (double TimeForecast::*part :
         {&TimeForecast::products, &TimeForecast::attention, &TimeForecast::elementwise, &TimeForecast::optimizer,
          &TimeForecast::copies, &TimeForecast::exposed_copies}) {
      mean.*part += share * (*rank->time).*part;
    }
    for (const auto& [group, seconds] : rank->time->collectives) mean.collectives[group] += share * seconds;
    for (const auto& [group, seconds] : rank->time->exposed) mean.exposed[group] += share * seconds;
  }
  return mean;
}

}  // namespace

std::vector<StagesAlike> distinct_stages(const Decisions& decisions) {
  const std::vector<Division> divisions = divisions_of_ranks(decisions);
  const auto last = static_cast<int64_t>(divisions.size()) - 1;
  const bool alike = repeats_alike(decisions);
  std::vector<StagesAlike> distinct;
  std::map<Division, size_t> known;  // of those between the ends
  for (int64_t rank = 0; rank <= last; ++rank) {
    const Division& division = divisions[static_cast<size_t>(rank)];
    const auto found = known.find(division);
    if (alike && rank < last && found != known.end()) {
      distinct[found->second].others.push_back(rank);
      continue;
    }
    if (rank > 0) known.emplace(division, distinct.size());
    distinct.push_back({rank, {}});
  }
  return distinct;
}

TimeForecast pipeline_time(const Decisions& decisions, const std::vector<const StepForecast*>& ranks,
                           int64_t micro_batches) {
  const auto pp = static_cast<int>(ranks.size());
  const PipelineSchedule schedule =
      make_schedule(decisions.pipeline.schedule, pp, static_cast<int>(decisions.pipeline.blocks.size()) / pp,
                    static_cast<int>(micro_batches));
  double before = 0, after = 0, message = 0, end = 0;
  for (const StepForecast* rank : ranks) {
    before = std::max(before, rank->actions.before);
    after = std::max(after, rank->actions.after);
    message = std::max(message, rank->actions.message);
  }
  const RecordedActions recorded(schedule, ranks);
  const auto seconds = [&](const PipelineAction& action) { return recorded.seconds(action); };
  for (const TimedAction& each : run_clock(schedule, seconds, message)) end = std::max(end, each.end);
  TimeForecast time = mean_of(ranks);
  time.bubble = std::max(before + end + after - time.total(), 0.0);
  return time;
}

}  // namespace meshtrain
