#pragma once

#include <functional>
#include <vector>

#include "runtime/program/report/run_record.h"

namespace meshtrain {

/// Serves the page of `runs`, read again as they go on, on `port` of 127.0.0.1 until the process gets SIGINT or
/// SIGTERM. `port` 0: any free one. Calls `ready` with the port when the page can be opened. Answers only requests that
/// name this host, so that no web page of another site can read it through a name that it gave to 127.0.0.1. Throws
/// InputError when the port is in use or not allowed, std::runtime_error when connections are no longer accepted.
void serve_page(std::vector<RunReader>& runs, int port, const std::function<void(int port)>& ready);

}  // namespace meshtrain
