#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

/// Makes the functions below append their lines to `file` too; an empty `file` ends this. Any rank may call it, on any
/// host that has the file.
void keep_error_lines_in(std::filesystem::path file);

/// Prints "meshtrain: LINE" to stderr, and appends LINE to the file above as open_log() does, with its time and level.
/// Waits for the file at most a second, because its disk may have failed. Any thread may call it.
void print_error_line(const std::string& line);
/// Prints "meshtrain: warning: TEXT" and appends TEXT in the same way.
void print_warning_line(const std::string& text);

}  // namespace meshtrain
