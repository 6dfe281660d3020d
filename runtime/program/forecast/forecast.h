#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/program/forecast/rank_steps.h"
#include "runtime/program/forecast/simulation.h"

namespace meshtrain {

/// The forecast of a step of a run, for the rank that holds most; the time is that of all ranks.
struct RunForecast {
  StepForecast step;
  int64_t rank = 0;  ///< the rank that holds most: the first or the last of those with the same stages
  int64_t micro_batches = 0;
};

/// Returns the forecast of `decisions`, the result of resolve(). Simulates a model with many layers twice, with few
/// layers, and a step with many micro-batches with one and with two. Layers repeat, and each repetition adds the same
/// memory and traffic. Throws InputError as simulate() does.
///
/// With a machine it also predicts the time of a step, that of the slower of the two ranks. With pp it compares the
/// ranks whose stages differ, each with its own layers, and the time is that of the pipeline (pipeline_time()).
/// `change`: of the timelines from which times are predicted.
RunForecast forecast(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine = nullptr,
                     const TimelineChange& change = {});

/// Returns forecast() for the rank with experts that all tokens of all ranks of ep choose: a second number beside that
/// of forecast(), for which all experts are chosen equally often. None without ep.
std::optional<RunForecast> forecast_worst_routing(const Decisions& decisions, const ForecastHosts& hosts);

/// Returns the forecast of rank `rank` alone; with pp its time is that of the pipeline.
StepForecast forecast_rank(const Decisions& decisions, const ForecastHosts& hosts, int64_t rank,
                           const Machine* machine = nullptr);

/// Returns the bytes of the fullest of the ranks with each coordinate along pp; empty without pp.
std::vector<int64_t> stage_memory(const Decisions& decisions, const ForecastHosts& hosts);

/// Returns the timelines of the first and the last rank from which forecast() would predict the time, with the
/// signatures of all operators. Throws InputError as simulate() does.
std::vector<Timeline> timelines(const Decisions& decisions, const ForecastHosts& hosts);

}  // namespace meshtrain
