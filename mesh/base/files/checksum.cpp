#include "mesh/base/files/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <new>

#include "mesh/base/files/file_reader.h"

namespace meshtrain {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

uint64_t checksum(const void* data, size_t bytes) {
  return XXH3_64bits(data, bytes);
}

RunningChecksum::RunningChecksum() : state_(XXH3_createState()) {
  if (state_ == nullptr || XXH3_64bits_reset(state_) != XXH_OK) throw std::bad_alloc();
}

RunningChecksum::~RunningChecksum() {
  XXH3_freeState(state_);
}

void RunningChecksum::add(std::string_view bytes) {
  XXH3_64bits_update(state_, bytes.data(), bytes.size());
}

uint64_t RunningChecksum::value() const {
  return XXH3_64bits_digest(state_);
}

std::string checksum_text(uint64_t checksum) {
  std::string text(16, '0');
  for (size_t digit = text.size(); digit-- > 0; checksum >>= 4) text[digit] = kDigits[checksum & 0xF];
  return text;
}

std::optional<uint64_t> checksum_of_text(const std::string& text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t checksum = 0;
  for (const char digit : text) {
    const size_t value = kDigits.find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    checksum = checksum << 4 | value;
  }
  return checksum;
}

Fingerprint fingerprint(const std::filesystem::path& file) {
  constexpr int64_t kBlock = 64 << 10, kBlocks = 64;
  const FileReader reader(file);
  const int64_t size = reader.size();
  const auto sum = [&](int64_t offset, int64_t count) {
    const FileBytes bytes = reader.read(offset, count);
    return checksum(bytes.data(), static_cast<size_t>(count));
  };
  if (size <= kBlock * kBlocks) return {size, sum(0, size)};
  std::array<uint64_t, kBlocks> sums;
  for (int64_t block = 0; block < kBlocks; ++block) {
    const int64_t offset = static_cast<int64_t>(static_cast<double>(size - kBlock) / (kBlocks - 1) * block);
    sums[static_cast<size_t>(block)] = sum(std::min(offset, size - kBlock), kBlock);
  }
  return {size, checksum(sums.data(), sizeof sums)};
}

}  // namespace meshtrain
