#include "runtime/data/token_file.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

#include "mesh/error.h"

namespace meshtrain {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped, not converted");

template <typename Id>
void widen(const std::byte* bytes, int64_t count, int64_t* out) {
  const Id* ids = reinterpret_cast<const Id*>(bytes);
  std::copy(ids, ids + count, out);
}

// The sign bit is flipped because SSE2, the least an x86-64 has, compares 16- and 32-bit integers as signed.
template <typename Id, typename Signed>
int64_t max_id(const std::byte* bytes, int64_t count) {
  const Id* ids = reinterpret_cast<const Id*>(bytes);
  constexpr Id kSign = Id(1) << (8 * sizeof(Id) - 1);
  Signed largest = std::numeric_limits<Signed>::min();
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const Signed id = static_cast<Signed>(ids[i] ^ kSign);
    largest = id > largest ? id : largest;
  }
  return static_cast<Id>(static_cast<Id>(largest) ^ kSign);
}

}  // namespace

int64_t token_width(const std::string& dtype) {
  if (dtype == "uint8") return 1;
  if (dtype == "uint16") return 2;
  if (dtype == "uint32") return 4;
  throw InputError("token dtype \"" + dtype + "\" is not one of uint8, uint16, uint32");
}

void check_token(const std::string& option, int64_t id, const std::string& dtype) {
  const int64_t largest = (int64_t{1} << (8 * token_width(dtype))) - 1;
  if (id >= 0 && id <= largest) return;
  throw InputError(option + ": " + std::to_string(id) + " cannot stand in a file of " + dtype +
                   ", whose ids are 0 to " + std::to_string(largest) + ": name one of these, or use a wider --dtype");
}

TokenFile::TokenFile(const std::filesystem::path& path, const std::string& dtype)
    : file_(path), width_(token_width(dtype)), size_(file_.size() / width_) {
  if (file_.size() == 0) throw InputError(path.string() + ": the token file is empty");
  if (file_.size() % width_ != 0) {
    throw InputError(path.string() + ": " + std::to_string(file_.size()) + " bytes are not a whole number of " + dtype +
                     " tokens: the file was cut short, or its dtype is another");
  }
}

void TokenFile::read(int64_t first, int64_t count, int64_t* out) const {
  const std::byte* bytes = at(first, count);
  if (width_ == 1) return widen<uint8_t>(bytes, count, out);
  if (width_ == 2) return widen<uint16_t>(bytes, count, out);
  widen<uint32_t>(bytes, count, out);
}

int64_t TokenFile::max(int64_t first, int64_t count) const {
  const std::byte* bytes = at(first, count);
  if (count == 0) return -1;
  if (width_ == 1) return max_id<uint8_t, int8_t>(bytes, count);
  if (width_ == 2) return max_id<uint16_t, int16_t>(bytes, count);
  return max_id<uint32_t, int32_t>(bytes, count);
}

const std::byte* TokenFile::at(int64_t first, int64_t count) const {
  if (first < 0 || count < 0 || first > size_ - count) {
    throw std::out_of_range(path().string() + ": tokens [" + std::to_string(first) + ", +" + std::to_string(count) +
                            ") of " + std::to_string(size_));
  }
  return file_.data() + first * width_;
}

}  // namespace meshtrain
