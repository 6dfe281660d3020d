#pragma once

#include <string>

#include "mesh/base/size_text.h"
#include "runtime/program/telemetry/metrics.h"

namespace meshtrain {

/// Formats a step: "step  12/60  loss 2.1234  norm 0.81  lr 1.0e-03  12,345 tok/s  eta 0:34". `eta_seconds`: the time
/// that the remaining steps will take. Appends "  eval loss 2.3456" when the model was evaluated, and for a skipped
/// step the reason, with the parameter and the loss scale.
std::string console_line(const StepMetrics& metrics, int64_t num_steps, double eta_seconds);

}  // namespace meshtrain
