#pragma once

#include <string>

namespace meshtrain::emulated {

/// Receives the events by which tests judge a run: "synchronise" after a call in which the host waits, "allocate",
/// "refused".
void observe(const char* what, const std::string& detail);

}  // namespace meshtrain::emulated
