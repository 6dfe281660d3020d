#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

/// Lets print_error_line() append its lines to `file` too; empty: no longer. Any rank, on any host that has the file.
void keep_error_lines_in(std::filesystem::path file);

/// Prints "meshtrain: LINE" to stderr, and appends LINE to the file above as open_log() does, with its time and, as its
/// level, warning when it begins with "warning: ", else error. Waits for the file at most a second: its disk may be
/// what has failed. Any thread.
void print_error_line(const std::string& line);

}  // namespace meshtrain
