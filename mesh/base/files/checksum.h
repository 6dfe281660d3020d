#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

struct XXH3_state_s;  // of xxhash.h

namespace meshtrain {

/// Returns the 64-bit XXH3 hash (xxhash.com) of `bytes` bytes. It detects damage, not deliberate changes.
uint64_t checksum(const void* data, size_t bytes);

/// The checksum() of bytes that arrive in parts.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum&) = delete;
  RunningChecksum& operator=(const RunningChecksum&) = delete;

  void add(std::string_view bytes);
  uint64_t value() const;

 private:
  XXH3_state_s* state_;
};

/// Convert a checksum to 16 hexadecimal digits and back; std::nullopt for any other text.
std::string checksum_text(uint64_t checksum);
std::optional<uint64_t> checksum_of_text(const std::string& text);

/// The identity of a file's content, wherever the file is moved: its size and a checksum of it; of a large file, a
/// checksum of 4 MiB spread evenly over it.
struct Fingerprint {
  int64_t bytes = 0;
  uint64_t checksum = 0;

  bool operator==(const Fingerprint&) const = default;
};

/// Computes the fingerprint of `file`. Throws InputError when the file cannot be read.
Fingerprint fingerprint(const std::filesystem::path& file);

}  // namespace meshtrain
