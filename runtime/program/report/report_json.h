#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/program/report/run_record.h"

namespace meshtrain {

/// Returns the report of `runs` as the JSON document that a page draws (page/page.js): facts, curves, the rows of
/// tables. A script element may hold it: it is ASCII without "<". A curve has at most Series::kMostColumns points, so a
/// long run does not make a large document. `version`: counts up while a page follows the runs; 0: no page does.
std::string report_json(const std::vector<const RunRecord*>& runs, int64_t version = 0);

}  // namespace meshtrain
