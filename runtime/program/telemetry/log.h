#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

/// Sends the lines of spdlog's functions to stdout unchanged, and appends them to `file` with time, zone and level.
/// Throws std::exception when `file` cannot be opened. When `file` cannot be written later, stdout still gets the
/// lines.
void open_log(const std::filesystem::path& file);

/// Returns `line` of `level` as it is appended now: "2026-03-01 12:00:05.250+01:00 warning: ..." and a line break.
std::string log_line(const std::string& level, const std::string& line);

}  // namespace meshtrain
