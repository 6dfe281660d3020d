#pragma once

#include <string>

namespace meshtrain {

/// Returns a report, as report_json() makes it, as one HTML page that needs nothing else: no network, no other file.
/// One that follows asks the server that it came from every few seconds for a newer report (serve_page()).
std::string make_page(const std::string& report, bool follows = false);

}  // namespace meshtrain
