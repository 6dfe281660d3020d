#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace meshtrain {

/// Bytes read from a file, in an allocation of their own. Movable, not copyable.
class FileBytes {
 public:
  FileBytes() = default;
  /// Allocates `size` uninitialised bytes.
  explicit FileBytes(int64_t size);

  /// Returns nullptr when size() is 0.
  std::byte* data() { return bytes_.get(); }
  const std::byte* data() const { return bytes_.get(); }
  int64_t size() const { return bytes_ ? bytes_.get_deleter().size : 0; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data()), static_cast<size_t>(size())}; }

 private:
  struct Free {
    int64_t size;
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

}  // namespace meshtrain
