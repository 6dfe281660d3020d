#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace meshtrain {

enum class Compression { None, Gzip, Zstd };

/// Returns the compression that the name of `file` shows: *.gz, *.zst, in capitals too.
Compression compression_of(const std::filesystem::path& file);

/// Returns the name that `file` has without the ending of its compression.
std::filesystem::path uncompressed_name(const std::filesystem::path& file);

/// A compressed file, which is read from its beginning to its end as its uncompressed content. It needs a few hundred
/// KiB of memory, of zstd also the window that its writer chose, 128 MiB at most unless that was asked for (--long).
/// Several members or frames one after the other are one text, as for the programs gzip and zstd. One thread at a time.
class CompressedFile {
 public:
  /// Opens `file`, whose compression_of() is not None. Throws InputError when it cannot be read, and when it does not
  /// begin as such a file does.
  explicit CompressedFile(const std::filesystem::path& file);
  ~CompressedFile();
  CompressedFile(const CompressedFile&) = delete;
  CompressedFile& operator=(const CompressedFile&) = delete;

  /// Reads at most `count` bytes of what it holds into `to`. Returns how many were read, 0 only at the end. Throws
  /// InputError, naming the file and the byte, when it is damaged, cut short, or followed by something else, and when
  /// the disk fails.
  size_t read(char* to, size_t count);

  /// Returns the number of bytes of the compressed file that were read so far.
  int64_t position() const;

 private:
  class Reader;
  class Gzip;
  class Zstd;
  std::unique_ptr<Reader> reader_;
};

}  // namespace meshtrain
