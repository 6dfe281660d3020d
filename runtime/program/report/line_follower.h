#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace meshtrain {

/// A text file that another process may be appending to, cutting back or replacing. Each line is read once, block by
/// block, so memory does not grow with the file.
class LineFollower {
 public:
  explicit LineFollower(std::filesystem::path file) : file_(std::move(file)) {}

  /// Calls `visit` with each line that has been completed since the last call, without its line break. When the file
  /// was cut or replaced since then, calls `begin_again` first and reads it from the start. A file that does not exist
  /// has no lines. Lines longer than 1 MiB are counted and left out. Throws InputError, naming the file, when it cannot
  /// be read or is not a regular file.
  void read(const std::function<void()>& begin_again, const std::function<void(std::string_view line)>& visit);

  /// Returns how many lines were too long since the file was last read from its start.
  int64_t num_too_long() const { return num_too_long_; }

 private:
  void forget();
  bool continues(int descriptor, const struct ::stat& now) const;

  std::filesystem::path file_;
  int64_t offset_ = 0;  // of the first line that was not visited
  std::string before_;  // the bytes that stand before it
  dev_t device_ = 0;
  ino_t inode_ = 0;
  int64_t num_too_long_ = 0;
};

}  // namespace meshtrain
