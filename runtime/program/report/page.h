#pragma once

#include <string>

namespace meshtrain {

/// Returns one HTML page that shows `report`, made by report_json(), and needs no network and no other file. `follows`:
/// every few seconds the page asks its server (serve_page()) for a newer report.
std::string make_page(const std::string& report, bool follows = false);

}  // namespace meshtrain
