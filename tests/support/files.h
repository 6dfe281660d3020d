#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace meshtrain::testing {

/// The value of an environment variable; throws where it is not set.
std::string required(const char* variable);

/// The folders that ctest names in MESHTRAIN_SOURCE and MESHTRAIN_BUILD, for tests that read the repository or start
/// what is built. They throw where the variable is not set.
std::string source_folder();
std::string build_folder();

/// All bytes of `file`; none when it cannot be read.
std::string content(const std::filesystem::path& file);

/// Every file below `folder` by its path from there, with its content, and every folder with none.
std::map<std::string, std::string> contents(const std::filesystem::path& folder);

/// Writes a file of these bytes in the place of any other, and the folders above it.
void write_file(const std::filesystem::path& path, const std::string& bytes);

/// Writes little-endian ids of type Id, as a token file has them.
template <typename Id>
void write_ids(const std::filesystem::path& path, const std::vector<int64_t>& values) {
  const std::vector<Id> ids(values.begin(), values.end());
  write_file(path, std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)));
}

/// Returns `text` cut short, or with some bytes changed, chosen by `random`.
std::string damaged(std::string text, std::mt19937_64& random);

/// A disk on which no file can grow beyond `bytes`, while it lives.
class SmallDisk {
 public:
  explicit SmallDisk(uint64_t bytes);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace meshtrain::testing
