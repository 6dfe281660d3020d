#pragma once

#include <string>
#include <vector>

#include "runtime/program/report/run_record.h"

namespace meshtrain {

/// Returns `runs` as text for a terminal: facts, the parts of a step, starts, goodput, and the differences of their
/// recipes.
std::string summary_text(const std::vector<const RunRecord*>& runs);

}  // namespace meshtrain
