#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

/// Lets the functions below append their lines to `file` too; empty: no longer. Any rank, on any host that has the
/// file.
void keep_error_lines_in(std::filesystem::path file);

/// Prints "meshtrain: LINE" to stderr, and appends LINE to the file above as open_log() does, with its time and level.
/// Waits for the file at most a second: its disk may be what has failed. Any thread.
void print_error_line(const std::string& line);
/// Prints "meshtrain: warning: TEXT", and appends TEXT, likewise.
void print_warning_line(const std::string& text);

}  // namespace meshtrain
