#pragma once

#include <filesystem>

namespace meshtrain {

/// Sends what spdlog's functions are given to stdout, as it is, and behind what `file` has, each line with its time and
/// level. Throws std::exception when `file` cannot be opened; when it cannot be written later, stdout alone has the
/// lines.
void open_log(const std::filesystem::path& file);

}  // namespace meshtrain
