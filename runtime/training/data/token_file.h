#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "mesh/base/files/file_reader.h"
#include "runtime/training/data/megatron_index.h"

namespace meshtrain {

/// Returns the bytes of one token id in a file of `dtype`: 1 for uint8, 2 for uint16, 4 for uint32. Throws InputError
/// for others.
int64_t token_width(const std::string& dtype);

/// Throws InputError, naming the option that gave `id` ("--separator"), unless it fits into a file of `dtype`.
void check_token(const std::string& option, int64_t id, const std::string& dtype);

/// The smallest and the largest of some ids.
struct IdRange {
  int64_t least = 0;
  int64_t most = -1;
};

/// A file of little-endian token ids, one after the other and nothing else, or a Megatron file, whose tokens are those
/// that its index lists. Any thread may call.
class TokenFile {
 public:
  /// Opens the file. `dtype`: uint8, uint16 or uint32; or megatron, for `path` NAME.bin beside NAME.idx. Throws
  /// InputError when the file is missing, empty or cut short within a token, when its index is wrong, and when it has
  /// an index but `dtype` is not megatron.
  TokenFile(const std::filesystem::path& path, const std::string& dtype);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Returns the number of tokens.
  int64_t size() const { return size_; }
  /// Returns the bytes of a token.
  int64_t width() const { return width_; }
  /// Returns the dtype of a token: "uint16"; in a Megatron file also "int32" and others.
  const std::string& dtype() const { return dtype_; }
  /// Returns true when ids can be negative, which no token is.
  bool is_signed() const { return dtype_[0] == 'i'; }
  /// Returns the index of a Megatron file.
  const std::optional<MegatronIndex>& index() const { return index_; }

  /// Reads token ids [first, first + count) into `out`. Throws std::out_of_range beyond the file, and InputError,
  /// naming the tokens, when the disk fails or the file was cut short since.
  void read(int64_t first, int64_t count, int64_t* out) const;

  /// Returns the range of the ids [first, first + count). Throws as read() does.
  IdRange range(int64_t first, int64_t count) const;

 private:
  /// Calls `visit` with the bytes of these tokens, block by block, and with the number of tokens in a block.
  template <class Visit>
  void for_each_block(int64_t first, int64_t count, const Visit& visit) const;

  FileReader file_;
  std::optional<MegatronIndex> index_;
  std::string dtype_;
  int64_t width_ = 0;
  int64_t size_ = 0;
};

}  // namespace meshtrain
