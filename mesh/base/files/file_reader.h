#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "mesh/base/files/file_bytes.h"

namespace meshtrain {

/// A file that can be read at any offset. It is read, not mapped: a failing disk, or a file truncated meanwhile, is
/// then an InputError that names the file, and no SIGBUS. Any thread may call.
class FileReader {
 public:
  /// Opens `path`. Throws InputError when it is not a regular file that can be read, when it holds a reference in place
  /// of its content (describe_pointer()), and when aria2 has not finished downloading it.
  explicit FileReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// Returns the size in bytes that the file had when it was opened.
  int64_t size() const { return size_; }

  /// Reads bytes [offset, offset + count) into `to`. Throws InputError when the disk fails, or when the file was cut
  /// short or replaced since it was opened; std::out_of_range beyond size().
  void read(int64_t offset, void* to, int64_t count) const;
  FileBytes read(int64_t offset, int64_t count) const;
  /// Calls `visit` with [offset, offset + count), block by block. Throws as read().
  void for_each_block(int64_t offset, int64_t count, const std::function<void(std::string_view block)>& visit) const;

 private:
  struct OpenFile;
  struct Close {
    void operator()(const OpenFile* file) const;
  };
  using Handle = std::unique_ptr<const OpenFile, Close>;

  [[noreturn]] void fail(const std::string& reason) const;
  void refuse_stand_in() const;
  Handle open() const;

  std::filesystem::path path_;
  int64_t size_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  struct timespec changed_ {};
  Handle kept_;  // null when the process has many files open: each read then opens the file
};

/// Reads all bytes of a file. Throws InputError when it cannot be read.
FileBytes read_all(const std::filesystem::path& path);

}  // namespace meshtrain
