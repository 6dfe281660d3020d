#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/report/metrics_reader.h"

namespace meshtrain {

/// The record of a step in forecast.json: what was planned for a rank, and what its first steps were.
struct ForecastRecord {
  /// A quantity; none where it is not known.
  struct Pair {
    std::optional<double> planned, measured;
    bool operator==(const Pair&) const = default;
  };

  int64_t rank = 0;
  Pair memory, sent, seconds;                     ///< bytes at the peak; bytes; seconds of a step
  std::map<std::string, double> memory_by_part;   ///< bytes, planned
  std::map<std::string, double> seconds_by_part;  ///< planned, of computing; empty without a machine
  std::map<std::string, double> exposed;          ///< seconds of waiting by group, planned

  bool operator==(const ForecastRecord&) const = default;
};

/// Parses the text of a forecast.json. Throws InputError that names `file`.
ForecastRecord parse_forecast(const std::string& file, const std::string& text);

/// A line of a comparison: {"sent in a step", "1.9 MiB", "1.9 MiB", "0 %"}.
struct ForecastLine {
  std::string label, planned, measured, difference;
};

/// Returns what was planned beside what the run measured. `metrics`: of the run, for the waits of its steps.
std::vector<ForecastLine> compare(const ForecastRecord& step, const MetricsReader& metrics);

}  // namespace meshtrain
