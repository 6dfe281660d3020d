#pragma once

#include <string>
#include <vector>

#include "runtime/program/report/metrics_reader.h"

namespace meshtrain {

/// A part of a step's time.
struct StepPart {
  std::string label;
  double mean_seconds = 0;     ///< over all steps
  std::vector<double> values;  ///< means by column; NaN where there are no steps
};

/// The parts of a step's time, which add up to it.
struct StepTime {
  std::vector<StepPart> parts;  ///< without those that take no time
  double width = 1;             ///< steps in a column
  double mean_seconds = 0;      ///< of all parts
};

/// Divides the time of the steps of `metrics` into forward and backward, exposed communication by axis, data,
/// optimizer, checkpoint and evaluation. Metrics without "seconds" have one part.
StepTime step_time(const MetricsReader& metrics);

}  // namespace meshtrain
