#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace meshtrain {

/// Runs `write` on a thread of its own and waits for it at most a second, because the disk may be what has failed.
/// Returns the problem that `write` returns, or why it has not ended; empty for none. Any thread.
std::string write_late(std::function<std::string()> write);

/// Appends `text` to `file` with one write, so that texts of several processes do not mix, as write_late() does.
/// `makes`: makes the file if it is absent, but no folder.
std::string append_late(const std::filesystem::path& file, const std::string& text, bool makes);

}  // namespace meshtrain
