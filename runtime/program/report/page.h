#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/report/run_record.h"

namespace meshtrain {

/// Returns the report of `runs`, at least one, as one HTML page that needs nothing else: no network, no other file.
/// With a `version` the page asks the server that it came from every few seconds for a newer one (serve_page()).
std::string make_page(const std::vector<const RunRecord*>& runs, const std::optional<int64_t>& version = std::nullopt);

/// The page's style sheet and script.
extern const char* const kPageStyle;
extern const char* const kPageScript;
extern const char* const kFollowScript;  ///< of a page that follows

}  // namespace meshtrain
