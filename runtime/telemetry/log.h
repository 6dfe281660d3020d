#pragma once

#include <filesystem>

namespace meshtrain {

/// Sends the lines of spdlog's functions to stdout unchanged, and appends them to `file` with time and level. Throws
/// std::exception when `file` cannot be opened. When `file` cannot be written later, stdout still gets the lines.
void open_log(const std::filesystem::path& file);

}  // namespace meshtrain
