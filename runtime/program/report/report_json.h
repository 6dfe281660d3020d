#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/program/report/run_record.h"

namespace meshtrain {

/// Returns the report of `runs` as the JSON document that a page draws (page/page.js): facts, curves, the rows of
/// tables. It may stand in a script element: it is ASCII without "<". A curve has at most Series::kMostColumns points,
/// so long runs make no large document. `version`: of a page that follows its runs; 0: of one that does not.
std::string report_json(const std::vector<const RunRecord*>& runs, int64_t version = 0);

}  // namespace meshtrain
