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

/// Returns the keys of the waits that are the bubble of a pipeline (docs/metrics.md): for messages, and at the end of a
/// step for the slowest stage. Empty without a pipeline.
std::vector<std::string> bubble_keys(const MetricsReader& metrics);

/// Divides the time of the steps of `metrics` into forward and backward, the bubble of a pipeline, other exposed
/// communication by axis, data, optimizer, checkpoint and evaluation. Metrics without "seconds" have one part.
StepTime step_time(const MetricsReader& metrics);

}  // namespace meshtrain
