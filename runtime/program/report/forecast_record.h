#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/report/metrics_reader.h"

namespace meshtrain {

/// The content of forecast.json: the forecast of a step of one rank, and the measurements of its first steps.
struct ForecastRecord {
  /// A quantity as forecast and as measured; none when it is not known.
  struct Pair {
    std::optional<double> planned, measured;
    bool operator==(const Pair&) const = default;
  };

  int64_t rank = 0;
  Pair memory, sent, seconds;                     ///< bytes at the peak; bytes; seconds of a step
  std::map<std::string, double> memory_by_part;   ///< bytes, forecast
  std::map<std::string, double> seconds_by_part;  ///< of computing, forecast; empty without a machine
  std::map<std::string, double> exposed;          ///< seconds of waiting by group, forecast

  bool operator==(const ForecastRecord&) const = default;
};

/// Parses the text of a forecast.json. Throws InputError that names `file`.
ForecastRecord parse_forecast(const std::string& file, const std::string& text);

/// A line of a comparison: {"sent in a step", "1.9 MiB", "1.9 MiB", "0 %"}.
struct ForecastLine {
  std::string label, planned, measured, difference;
};

/// Compares the forecast with the measurements of the run. `metrics`: the run's metrics, for the waits of its steps.
std::vector<ForecastLine> compare(const ForecastRecord& step, const MetricsReader& metrics);

}  // namespace meshtrain
