#pragma once

#include <string>
#include <vector>

#include "runtime/program/published/published_runs.h"

namespace meshtrain {

/// Formats one number as printf does, in at most 47 characters.
std::string number_text(const char* format, double number);

/// Returns predictions beside what was measured, a row for each run, in at most 100 columns.
std::string to_text(const std::vector<PublishedForecast>& forecasts);

/// Returns a sentence on the score.
std::string to_text(const PublishedScore& score);

/// Returns the score as a JSON object on one line: {"rows", "time_error_mean", "time_error_worst", "kendall_tau_mean",
/// "memory_error_mean", "out_of_memory_named", "out_of_memory_total", "fitting_refused"}.
std::string to_json(const PublishedScore& score);

}  // namespace meshtrain
