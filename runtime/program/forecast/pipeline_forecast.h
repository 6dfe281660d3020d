#pragma once

#include <vector>

#include "runtime/program/forecast/simulation.h"

namespace meshtrain {

/// A rank of a pipeline whose step is forecast for others like it.
struct StagesAlike {
  int64_t rank = 0;             ///< along pp
  std::vector<int64_t> others;  ///< ranks along pp with the same layers; they come later, and hold no more
};

/// Returns the ranks of a pipeline whose stages differ, in their order: the first, the last, and those between with
/// other layers than the ones before. Where layers are not alike, each rank.
std::vector<StagesAlike> distinct_stages(const Decisions& decisions);

/// Returns the time of a step of a pipeline. The actions of all ranks run on one clock, each when its message has come;
/// what ranks do around them ends when the slowest has. Of everything else than the bubble it has the mean of the
/// ranks. `ranks`: the forecast of each rank along pp, that of a rank with the same layers where its own is missing.
/// `micro_batches`: of a step.
TimeForecast pipeline_time(const Decisions& decisions, const std::vector<const StepForecast*>& ranks,
                           int64_t micro_batches);

}  // namespace meshtrain
