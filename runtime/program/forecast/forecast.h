#pragma once

#include <cstdint>
#include <vector>

#include "runtime/program/forecast/simulation.h"

namespace meshtrain {

/// The forecast of a step of a run, for the rank that holds most.
struct RunForecast {
  StepForecast step;
  int64_t rank = 0;  ///< the first or the last rank, whichever holds more; no other rank holds more
  int64_t micro_batches = 0;
};

/// Returns the forecast of `decisions`, the result of resolve(). Simulates a model with many layers twice, with few
/// layers, and a step with many micro-batches with one and with two. Layers repeat, and each repetition adds the same
/// memory and traffic. Throws InputError as simulate() does.
///
/// With a machine it also predicts the time of a step, that of the slower of the two ranks.
RunForecast forecast(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine = nullptr);

/// Returns the forecast of rank `rank` alone.
StepForecast forecast_rank(const Decisions& decisions, const ForecastHosts& hosts, int64_t rank,
                           const Machine* machine = nullptr);

/// Returns the timelines of the first and the last rank from which forecast() would predict the time, with the
/// signatures of all operators. Throws InputError as simulate() does.
std::vector<Timeline> timelines(const Decisions& decisions, const ForecastHosts& hosts);

/// Returns the period in layers with which the model's layers and the decisions about them repeat, including the
/// buffers that units reuse.
int64_t layer_period(const Decisions& decisions);

}  // namespace meshtrain
