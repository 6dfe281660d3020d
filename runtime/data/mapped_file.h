#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace meshtrain {

/// A file's bytes, mapped for reading. The file must not be shortened while it is mapped.
class MappedFile {
 public:
  /// Throws InputError when `path` is not a file that can be read. An empty file is mapped as no bytes.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// nullptr when the file is empty.
  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

  /// What has been read no longer counts as memory of this process; it is read again where it is asked for.
  void let_go() const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace meshtrain
