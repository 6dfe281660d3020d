#include "runtime/program/forecast/forecast.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "expert_parallel/dispatch.h"
#include "runtime/program/forecast/pipeline_forecast.h"
#include "runtime/program/forecast/rank_steps.h"

namespace meshtrain {
namespace {

/// Returns the forecast of the first and the last of the ranks that hold the same layers: the memory of the fuller one,
/// and the time of the slower one. No rank between them holds more.
RunForecast of_ranks(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine,
                     const TimelineChange& change, int64_t first_rank, int64_t last_rank) {
  const RankSteps of_last(decisions, hosts, machine, last_rank, change);
  const RankSteps of_first(decisions, hosts, machine, first_rank, change);
  const int64_t few = of_last.most_removed();
  StepForecast step = of_last.without(few), first = last_rank == first_rank ? step : of_first.without(few);
  const bool first_is_slower = machine != nullptr && first.time->total() > step.time->total();
  const bool first_is_fuller = first.memory().total() > step.memory().total();
  const auto complete = [&](bool is_first, StepForecast of_few) {
    return (is_first ? of_first : of_last).complete(std::move(of_few));
  };
  RunForecast run{complete(first_is_fuller, first_is_fuller ? first : step), first_is_fuller ? first_rank : last_rank,
                  of_last.micro_batches()};
  if (machine != nullptr && first_is_slower != first_is_fuller) {
    run.step.time = complete(first_is_slower, first_is_slower ? std::move(first) : std::move(step)).time;
  }
  return run;
}

/// Returns the forecast of the ranks with coordinate `pipeline_rank` along pp: as of_ranks(), but the first and the
/// last of them are compared by short steps.
RunForecast of_stages(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine,
                      const TimelineChange& change, int64_t pipeline_rank) {
  const MeshLayout& layout = decisions.layout;
  std::vector<int64_t> first, last;
  for (const Axis& axis : layout.axes()) {
    const bool is_pipeline = axis.name == kPipelineAxis;
    first.push_back(is_pipeline ? pipeline_rank : 0);
    last.push_back(is_pipeline ? pipeline_rank : axis.size - 1);
  }
  const RankSteps of_first(decisions, hosts, machine, layout.rank(first), change);
  const RankSteps of_last(decisions, hosts, machine, layout.rank(last), change);
  bool first_is_fuller = false, first_is_slower = false;
  if (of_first.rank() != of_last.rank()) {
    const StepForecast one = of_first.shortest(), other = of_last.shortest();
    first_is_fuller = one.memory().total() > other.memory().total();
    first_is_slower = machine != nullptr && one.time->total() > other.time->total();
  }
  const RankSteps& fuller = first_is_fuller ? of_first : of_last;
  RunForecast run{fuller.complete(), fuller.rank(), fuller.micro_batches()};
  if (first_is_slower != first_is_fuller && machine != nullptr) {
    StepForecast slower = (first_is_slower ? of_first : of_last).complete();
    run.step.time = std::move(slower.time);
    run.step.actions = std::move(slower.actions);
  }
  return run;
}

/// The forecasts of the ranks of a pipeline whose stages differ.
class PipelineForecast {
 public:
  PipelineForecast(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine,
                   const TimelineChange& change)
      : decisions_(decisions), distinct_(distinct_stages(decisions)) {
    for (const StagesAlike& each : distinct_) {
      forecasts_.push_back(of_stages(decisions, hosts, machine, change, each.rank));
    }
  }

  /// Returns the forecast of the fullest rank, with the time of the pipeline where there is a machine.
  RunForecast fullest() const {
    RunForecast fullest =
        *std::ranges::max_element(forecasts_, {}, [](const RunForecast& each) { return each.step.memory().total(); });
    fullest.step.time = time();
    return fullest;
  }

  std::optional<TimeForecast> time() const {
    if (!forecasts_.front().step.time) return std::nullopt;
    std::vector<const StepForecast*> ranks(static_cast<size_t>(decisions_.layout.size(kPipelineAxis)));
    for (size_t i = 0; i < distinct_.size(); ++i) {
      ranks[static_cast<size_t>(distinct_[i].rank)] = &forecasts_[i].step;
      for (const int64_t rank : distinct_[i].others) ranks[static_cast<size_t>(rank)] = &forecasts_[i].step;
    }
    return pipeline_time(decisions_, ranks, forecasts_.front().micro_batches);
  }

 private:
  const Decisions& decisions_;
  std::vector<StagesAlike> distinct_;
  std::vector<RunForecast> forecasts_;  // by distinct_
};

bool has_pipeline(const Decisions& decisions) {
  return decisions.layout.size(kPipelineAxis) > 1;
}

}  // namespace

StepForecast forecast_rank(const Decisions& decisions, const ForecastHosts& hosts, int64_t rank,
                           const Machine* machine) {
  const TimelineChange none;
  StepForecast step = RankSteps(decisions, hosts, machine, rank, none).complete();
  if (machine != nullptr && has_pipeline(decisions)) {
    step.time = PipelineForecast(decisions, hosts, machine, none).time();
  }
  return step;
}

std::vector<int64_t> stage_memory(const Decisions& decisions, const ForecastHosts& hosts) {
  std::vector<int64_t> bytes;
  for (int64_t rank = 0; has_pipeline(decisions) && rank < decisions.layout.size(kPipelineAxis); ++rank) {
    bytes.push_back(of_stages(decisions, hosts, /*machine=*/nullptr, {}, rank).step.memory().total());
  }
  return bytes;
}

std::vector<Timeline> timelines(const Decisions& decisions, const ForecastHosts& hosts) {
  const TimelineChange none;
  std::vector<Timeline> found;
  std::set<int64_t> ranks = {0, decisions.layout.size() - 1};
  for (const StagesAlike& each : distinct_stages(decisions)) {
    ranks.insert(decisions.layout.group({kPipelineAxis}, 0)[static_cast<size_t>(each.rank)]);
  }
  for (const int64_t rank : ranks) {
    const RankSteps steps(decisions, hosts, nullptr, rank, none);
    const int64_t removed = steps.most_removed();
    for (const int64_t each : {removed, std::max<int64_t>(removed - 1, 0)}) {
      for (StepForecast& step : steps.simulated(each, Recording::Signatures)) {
        found.push_back(std::move(step.timeline));
      }
    }
  }
  return found;
}

RunForecast forecast(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine,
                     const TimelineChange& change) {
  if (has_pipeline(decisions)) return PipelineForecast(decisions, hosts, machine, change).fullest();
  return of_ranks(decisions, hosts, machine, change, 0, decisions.layout.size() - 1);
}

std::optional<RunForecast> forecast_worst_routing(const Decisions& decisions, const ForecastHosts& hosts) {
  if (decisions.layout.ep() == 1) return std::nullopt;
  const WorstRouting worst;
  return forecast(decisions, hosts);
}

}  // namespace meshtrain
