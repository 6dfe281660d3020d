#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

/// The levels of the log, from the lowest to the highest; Off is above the level of every line.
enum class LogLevel { Info, Warning, Error, Off };

/// Returns the level called `word`: info, warning, error or off. Throws InputError for another word.
LogLevel log_level_of(const std::string& word);

/// Sets the lowest level of the lines that are printed; a process begins with Info. Progress has level Info. The file
/// of log_to() keeps the lines of every level.
void set_log_level(LogLevel level);
LogLevel log_level();

/// Log one line, given without a prefix and without a line break at its end. Any thread of any rank may call these
/// functions. They throw nothing. They wait at most a second for the file of log_to(), but log_info() waits longer when
/// the disk is busy.
///
/// | function      | printed to                       | as                         | in the file |
/// |---------------|----------------------------------|----------------------------|-------------|
/// | log_info()    | stderr; stdout after log_to()    | LINE                       | info        |
/// | log_warning() | stderr                           | meshtrain: warning: LINE   | warning     |
/// | log_error()   | stderr                           | meshtrain: error: LINE     | error       |
/// | log_failure() | stderr, whatever the level       | meshtrain: LINE            | error       |
///
/// One rank calls log_failure(), with the line that ends a failed command.
void log_info(const std::string& line);
void log_warning(const std::string& line);
void log_error(const std::string& line);
void log_failure(const std::string& line);

/// Makes this process, rank 0 of a run, print lines of level Info to stdout and append all lines also to `file`, as
/// "2026-03-01 12:00:05.250+01:00 warning: LINE". Creates `file` if it is absent. Throws std::runtime_error when `file`
/// cannot be opened; lines of level Info still go to stdout then. When `file` cannot be written later, lines are still
/// printed.
void log_to(const std::filesystem::path& file);

/// Makes another rank of that run append its warnings, errors and failures to `file`, if its host has this file.
void log_warnings_to(const std::filesystem::path& file);

/// Ends log_to() and log_warnings_to().
void close_log();

}  // namespace meshtrain
