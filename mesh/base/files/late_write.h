#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace meshtrain {

/// Runs `write` on a thread of its own and waits for it at most a second, because the disk may have failed. Returns the
/// problem that `write` returns, or that it has not ended; empty for none. Any thread may call this.
std::string write_late(std::function<std::string()> write);

/// Appends `text` to `file` by write_late(). It is one write, so that texts of several processes do not mix. `makes`:
/// creates the file if it is absent, but not its folder.
std::string append_late(const std::filesystem::path& file, const std::string& text, bool makes);

}  // namespace meshtrain
