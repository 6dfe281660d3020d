#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace meshtrain::testing {

/// All bytes of `file`; none when it cannot be read.
std::string content(const std::filesystem::path& file);

/// Every file below `folder` by its path from there, with its content, and every folder with none.
std::map<std::string, std::string> contents(const std::filesystem::path& folder);

}  // namespace meshtrain::testing
