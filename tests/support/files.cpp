#include "tests/support/files.h"

#include <fstream>
#include <sstream>

namespace meshtrain::testing {

std::string content(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    files[entry.path().lexically_relative(folder)] = entry.is_regular_file() ? content(entry.path()) : "";
  }
  return files;
}

}  // namespace meshtrain::testing
