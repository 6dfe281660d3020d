#pragma once

#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/support/messages.h"

namespace meshtrain::testing {

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::remove(path);  // a file rewritten in place is flushed to the disk by some file systems
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Little-endian ids of type Id, as a token file has them.
template <typename Id>
void write_ids(const std::filesystem::path& path, const std::vector<int64_t>& values) {
  const std::vector<Id> ids(values.begin(), values.end());
  write_file(path, std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)));
}

/// A disk on which no file can grow beyond `bytes`, while it lives.
class SmallDisk {
 public:
  explicit SmallDisk(uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

/// `text` cut short, or with some bytes changed, chosen by `random`.
inline std::string damaged(std::string text, std::mt19937_64& random) {
  if (random() % 3 == 0) return text.substr(0, random() % (text.size() + 1));
  for (uint64_t flips = 1 + random() % 4; flips > 0 && !text.empty(); --flips) {
    text[random() % text.size()] ^= static_cast<char>(1 + random() % 255);
  }
  return text;
}

}  // namespace meshtrain::testing
