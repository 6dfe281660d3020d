#pragma once

#include <cstdint>
#include <vector>

#include "runtime/program/forecast/simulation.h"

namespace meshtrain {

/// What the fullest rank holds and sends in a step of a run.
struct RunForecast {
  StepForecast step;
  int64_t rank = 0;  ///< the one that holds most among the first and the last; others hold no more
  int64_t micro_batches = 0;
};

/// Returns the forecast of `decisions`, the result of resolve(). A model with many layers is simulated with a few,
/// twice, and a step with many micro-batches with one and two: layers repeat, and what a step holds and sends grows
/// with each repetition by the same. Throws InputError as simulate() does.
///
/// Also predicts the time of a step when there is a machine: that of the slower of the two ranks.
RunForecast forecast(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine = nullptr);

/// Returns the forecast of rank `rank` alone.
StepForecast forecast_rank(const Decisions& decisions, const ForecastHosts& hosts, int64_t rank,
                           const Machine* machine = nullptr);

/// Returns timelines with the signatures of all operators, of the first and the last rank, that forecast() would take
/// the time from. Throws InputError as simulate() does.
std::vector<Timeline> timelines(const Decisions& decisions, const ForecastHosts& hosts);

/// Returns the number of layers after which the model's layers, and what the decisions do with them, repeat: the
/// buffers that units reuse among it.
int64_t layer_period(const Decisions& decisions);

}  // namespace meshtrain
