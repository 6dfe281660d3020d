#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "runtime/data/file_mapping.h"

namespace meshtrain {

/// A file's bytes, mapped for reading. The file must not be shortened while it is mapped.
class MappedFile {
 public:
  /// Throws InputError when `path` is not a file that can be read. An empty file is mapped as no bytes.
  explicit MappedFile(std::filesystem::path path) : path_(std::move(path)), mapping_(path_) {}

  const std::filesystem::path& path() const { return path_; }
  /// nullptr when the file is empty.
  const std::byte* data() const { return mapping_.data(); }
  int64_t size() const { return mapping_.size(); }

  /// What has been read no longer counts as memory of this process; it is read again where it is asked for.
  void let_go() const { mapping_.let_go(); }

 private:
  std::filesystem::path path_;
  FileMapping mapping_;
};

}  // namespace meshtrain
