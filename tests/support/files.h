#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace meshtrain::testing {

/// Returns the value of an environment variable. Throws when it is not set.
std::string required(const char* variable);

/// Return the folders that ctest names in MESHTRAIN_SOURCE and MESHTRAIN_BUILD, for tests that read the repository or
/// start built programs. Throw when the variable is not set.
std::string source_folder();
std::string build_folder();

/// Returns all bytes of `file`; none when the file cannot be read.
std::string content(const std::filesystem::path& file);

/// Returns the content of every file below `folder` by its relative path, and no content for every folder.
std::map<std::string, std::string> contents(const std::filesystem::path& folder);

/// Writes a file of these bytes, and the folders above it. Replaces an existing file.
void write_file(const std::filesystem::path& path, const std::string& bytes);

/// Writes little-endian ids of type Id, the format of a token file.
template <typename Id>
void write_ids(const std::filesystem::path& path, const std::vector<int64_t>& values) {
  const std::vector<Id> ids(values.begin(), values.end());
  write_file(path, std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)));
}

/// Returns `text` cut short, or with some bytes changed, chosen by `random`.
std::string damaged(std::string text, std::mt19937_64& random);

/// A limit, in bytes, for the size of all files, while this object lives.
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
