#pragma once

#include <string>

namespace meshtrain::emulated {

/// Is called for what a run is judged by: "synchronise" after a call in which the host waits, "allocate", "refused".
void observe(const char* what, const std::string& detail);

}  // namespace meshtrain::emulated
