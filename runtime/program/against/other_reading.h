#pragma once

#include <map>
#include <optional>
#include <string>

#include "runtime/program/against/explain.h"
#include "runtime/program/against/own_step.h"
#include "runtime/program/against/step_dump.h"

namespace meshtrain {

/// A reading of the samples other than the dump's, with which every gradient of the program is that of one rank.
struct OtherReading {
  Finding finding;
  OwnStep step;  ///< of this reading
};

/// Tries labels that are shifted twice, attention across documents, and positions that begin anew on each rank of cp.
/// Each takes a step. `own`, `precision`: the step of the dump's reading. `rounding`: as for gradient_facts(). No
/// collective.
std::optional<OtherReading> find_other_reading(const StepDump& dump, const OwnStep& own, const std::string& precision,
                                               const std::map<std::string, double>& rounding);

}  // namespace meshtrain
