#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

struct XXH3_state_s;  // of xxhash.h

namespace meshtrain {

/// XXH3 of 64 bits, xxhash.com: it finds damage, not deceit.
uint64_t checksum(const void* data, size_t bytes);

/// The same of bytes that come in parts.
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

/// 16 hexadecimal digits and back; nothing for any other text.
std::string checksum_text(uint64_t checksum);
std::optional<uint64_t> checksum_of_text(const std::string& text);

/// What a file is known by, wherever it is moved: its size and the checksum of parts of it, 4 MiB spread evenly over a
/// large one.
struct Fingerprint {
  int64_t bytes = 0;
  uint64_t checksum = 0;

  bool operator==(const Fingerprint&) const = default;
};

/// Throws InputError when the file cannot be read.
Fingerprint fingerprint(const std::filesystem::path& file);

}  // namespace meshtrain
