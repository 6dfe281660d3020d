#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace meshtrain {

/// The bytes of a file in memory of this process, which goes when this does. Moved, not copied.
class FileMapping {
 public:
  /// Throws InputError when `path` is not a file that can be read. An empty file is no bytes.
  explicit FileMapping(const std::filesystem::path& path);

  /// nullptr when the file is empty.
  const std::byte* data() const { return bytes_.get(); }
  int64_t size() const { return bytes_ ? bytes_.get_deleter().size : 0; }
  /// What has been read no longer counts as memory of this process; it is read again where it is asked for.
  void let_go() const;

 private:
  struct Unmap {
    int64_t size;
    void operator()(const std::byte* bytes) const;
  };
  std::unique_ptr<const std::byte, Unmap> bytes_;
};

}  // namespace meshtrain
