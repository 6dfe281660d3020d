#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "runtime/data/mapped_file.h"

namespace meshtrain {

/// Bytes of one token id in a file of `dtype`: 1 for uint8, 2 for uint16, 4 for uint32. Throws InputError for others.
int64_t token_width(const std::string& dtype);

/// Throws InputError, naming the option that gave `id` ("--separator"), unless it can stand in a file of `dtype`.
void check_token(const std::string& option, int64_t id, const std::string& dtype);

/// A memory-mapped file of little-endian token ids, one after the other and nothing else.
class TokenFile {
 public:
  /// `dtype`: uint8, uint16 or uint32. Throws InputError when the file is missing, empty or cut short within a token.
  TokenFile(const std::filesystem::path& path, const std::string& dtype);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Number of tokens.
  int64_t size() const { return size_; }
  int64_t width() const { return width_; }

  /// Token ids [first, first + count) into out. Throws std::out_of_range beyond the file.
  void read(int64_t first, int64_t count, int64_t* out) const;

  /// The largest id of [first, first + count); -1 when count is 0. Throws std::out_of_range beyond the file.
  int64_t max(int64_t first, int64_t count) const;

 private:
  const std::byte* at(int64_t first, int64_t count) const;

  MappedFile file_;
  int64_t width_ = 0;
  int64_t size_ = 0;
};

}  // namespace meshtrain
