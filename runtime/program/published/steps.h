#pragma once

#include <cstdint>
#include <vector>

#include "runtime/program/forecast/time_forecast.h"
#include "runtime/program/published/software.h"
#include "runtime/program/published/table.h"
#include "runtime/program/recipe/decisions.h"

namespace meshtrain {

/// Ranks that share a host in published runs.
inline constexpr int64_t kRanksPerHost = 8;

/// The steps of a published run as its program makes them: simulated with few layers and micro-batches, from which the
/// time of all follows.
class PublishedSteps {
 public:
  /// `decisions`: the decisions for the recipe that recipe_of() returned. Throws InputError as simulate() does.
  PublishedSteps(const PublishedRun& run, const Decisions& decisions, const Software& software);

  /// Returns the time of a step of the slowest rank, for which the others wait.
  TimeForecast time(const Machine& machine) const;

 private:
  TimeForecast own_time(const Machine& machine) const;

  const PublishedRun run_;
  const Software software_;
  int64_t layers_, period_, few_ = 0, micro_batches_ = 0;
  std::vector<int64_t> counts_;      // of micro-batches that are simulated
  std::vector<Timeline> timelines_;  // by layers, then by micro-batches
};

/// Returns `time` with what a timeline lacks: what the slowest rank takes longer than the mean, and the hosts' work on
/// pieces of parameters.
TimeForecast with_waits(TimeForecast time, const PublishedRun& run, const Software& software);

}  // namespace meshtrain
