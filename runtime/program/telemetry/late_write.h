#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

/// Appends `text` to `file` with one write, so that texts of several processes do not mix. Waits at most a second,
/// because the disk may be what has failed. `makes`: makes the file if it is absent, but no folder. Returns why the
/// text was not written, or not yet; empty when it was. Any thread.
std::string append_late(const std::filesystem::path& file, const std::string& text, bool makes);

}  // namespace meshtrain
