#include "tests/support/files.h"

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace meshtrain::testing {

std::string required(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr) throw std::runtime_error(std::string(variable) + " is not set, as ctest sets it");
  return value;
}

std::string source_folder() {
  return required("MESHTRAIN_SOURCE");
}

std::string build_folder() {
  return required("MESHTRAIN_BUILD");
}

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

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::remove(path);  // some file systems flush a file that is rewritten in place
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string damaged(std::string text, std::mt19937_64& random) {
  if (random() % 3 == 0) return text.substr(0, random() % (text.size() + 1));
  for (uint64_t flips = 1 + random() % 4; flips > 0 && !text.empty(); --flips) {
    text[random() % text.size()] ^= static_cast<char>(1 + random() % 255);
  }
  return text;
}

SmallDisk::SmallDisk(uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
  getrlimit(RLIMIT_FSIZE, &before_);
  const rlimit limit{bytes, before_.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
}

SmallDisk::~SmallDisk() {
  setrlimit(RLIMIT_FSIZE, &before_);
  std::signal(SIGXFSZ, handler_);
}

}  // namespace meshtrain::testing
