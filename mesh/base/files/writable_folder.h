#pragma once

#include <filesystem>
#include <string>

namespace meshtrain {

/// Returns `path`, or the nearest folder above it that exists.
std::filesystem::path existing_part(const std::filesystem::path& path);

/// Throws InputError unless this process may create files in `folder`, or create the folder. `what` begins the message,
/// as in "the run directory".
void check_writable(const std::filesystem::path& folder, const std::string& what);

/// Throws InputError about `key` unless `folder` or its parent exists and this process may create files in `folder`.
void check_writable_or_new(const std::filesystem::path& folder, const std::string& key);

}  // namespace meshtrain
