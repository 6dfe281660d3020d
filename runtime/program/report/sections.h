#pragma once

#include <string>
#include <vector>

#include "runtime/program/report/run_record.h"

namespace meshtrain {

using Runs = std::vector<const RunRecord*>;

// The sections of a page as HTML, each with its heading; empty when no run has anything to show in it. The n-th run has
// the color n % kNumColors wherever several are drawn.
std::string training_section(const Runs& runs);       ///< losses, gradient norm, learning rate
std::string speed_section(const Runs& runs);          ///< tokens/s, MFU, memory
std::string time_section(const Runs& runs);           ///< where a step's time goes
std::string communication_section(const Runs& runs);  ///< bytes and seconds by axis
std::string mesh_section(const Runs& runs);
std::string history_section(const Runs& runs);  ///< starts, interruptions, checkpoints, skipped steps, warnings
std::string goodput_section(const Runs& runs);
std::string plan_section(const Runs& runs);    ///< what was planned, beside the first steps
std::string recipe_section(const Runs& runs);  ///< differences, changes over resumes, the recipes
std::string problems_section(const Runs& runs);

/// Returns the name of a run with its color before it.
std::string run_name(const Runs& runs, size_t i);
/// Returns run_name() as a heading where there are several runs; else nothing.
std::string run_heading(const Runs& runs, size_t i);

}  // namespace meshtrain
