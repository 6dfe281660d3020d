#include "runtime/training/data/token_file.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "mesh/base/error.h"
#include "runtime/training/data/file_kind.h"

namespace meshtrain {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read, not converted");

constexpr int64_t kBlockTokens = int64_t{1} << 17;  // read at once: a sample, or as much as a cache holds

// The sign bit of unsigned ids is flipped because SSE2, the least an x86-64 has, compares 16- and 32-bit integers as
// signed.
template <typename Id>
IdRange range_of(const Id* ids, int64_t count) {
  using Signed = std::make_signed_t<Id>;
  constexpr Id kSign = std::is_signed_v<Id> ? 0 : static_cast<Id>(Id(1) << (8 * sizeof(Id) - 1));
  Signed least = std::numeric_limits<Signed>::max(), most = std::numeric_limits<Signed>::min();
#pragma omp simd reduction(min : least) reduction(max : most)
  for (int64_t i = 0; i < count; ++i) {
    const Signed id = static_cast<Signed>(ids[i] ^ kSign);
    least = id < least ? id : least;
    most = id > most ? id : most;
  }
  return {static_cast<Id>(static_cast<Id>(least) ^ kSign), static_cast<Id>(static_cast<Id>(most) ^ kSign)};
}

/// Calls `visit` with `bytes` as an array of ids.
template <class Visit>
void visit_ids(const std::string& dtype, const std::byte* bytes, const Visit& visit) {
  if (dtype == "uint8") return visit(reinterpret_cast<const uint8_t*>(bytes));
  if (dtype == "uint16") return visit(reinterpret_cast<const uint16_t*>(bytes));
  if (dtype == "uint32") return visit(reinterpret_cast<const uint32_t*>(bytes));
  if (dtype == "int8") return visit(reinterpret_cast<const int8_t*>(bytes));
  if (dtype == "int16") return visit(reinterpret_cast<const int16_t*>(bytes));
  if (dtype == "int32") return visit(reinterpret_cast<const int32_t*>(bytes));
  visit(reinterpret_cast<const int64_t*>(bytes));
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
  throw InputError(option + ": " + std::to_string(id) + " does not fit into a file of " + dtype +
                   ", whose ids are 0 to " + std::to_string(largest) + ": give one of these, or use a wider --dtype");
}

TokenFile::TokenFile(const std::filesystem::path& path, const std::string& dtype) : file_(path), dtype_(dtype) {
  if (dtype == "megatron") {
    index_.emplace(path, file_.size());
    dtype_ = index_->dtype();
    width_ = dtype_ == "int64" ? 8 : token_width(is_signed() ? "u" + dtype_ : dtype_);
    size_ = index_->num_tokens();
    if (size_ == 0) throw InputError(path.string() + ": its index lists no tokens");
    return;
  }
  width_ = token_width(dtype);
  size_ = file_.size() / width_;
  if (file_.size() == 0) throw InputError(path.string() + ": the token file is empty");
  if (MegatronIndex::is_beside(path)) {
    throw InputError(
        path.string() + ": " + MegatronIndex::path_of(path).filename().string() +
        " next to it is a Megatron index: use dtype megatron, or move the index away to read the file as " + dtype);
  }
  if (file_.size() % width_ != 0) {
    const std::string no_tokens = describe_no_tokens(path, dtype);
    throw InputError(path.string() + ": " + std::to_string(file_.size()) + " bytes are not a whole number of " + dtype +
                     " tokens" +
                     (no_tokens.empty() ? ": the file was cut short, or has a different dtype" : no_tokens));
  }
}

void TokenFile::read(int64_t first, int64_t count, int64_t* out) const {
  for_each_block(first, count, [&](const std::byte* bytes, int64_t here) {
    visit_ids(dtype_, bytes, [&](const auto* ids) { out = std::copy(ids, ids + here, out); });
  });
}

IdRange TokenFile::range(int64_t first, int64_t count) const {
  IdRange range;
  bool begun = false;
  for_each_block(first, count, [&](const std::byte* bytes, int64_t here) {
    visit_ids(dtype_, bytes, [&](const auto* ids) {
      const IdRange found = range_of(ids, here);
      range = begun ? IdRange{std::min(range.least, found.least), std::max(range.most, found.most)} : found;
      begun = true;
    });
  });
  return range;
}

template <class Visit>
void TokenFile::for_each_block(int64_t first, int64_t count, const Visit& visit) const {
  if (first < 0 || count < 0 || first > size_ - count) {
    throw std::out_of_range(path().string() + ": tokens [" + std::to_string(first) + ", +" + std::to_string(count) +
                            ") of " + std::to_string(size_));
  }
  const std::string asked = "tokens " + std::to_string(first) + " to " + std::to_string(first + count - 1);
  FileBytes block(std::min(count, kBlockTokens) * width_);
  try {
    while (count > 0) {
      const MegatronIndex::Run run = index_ ? index_->run_at(first) : MegatronIndex::Run{first * width_, count};
      const int64_t here = std::min({count, run.num_tokens, kBlockTokens});
      file_.read(run.first_byte, block.data(), here * width_);
      visit(block.data(), here);
      first += here;
      count -= here;
    }
  } catch (const InputError& error) {
    throw InputError(std::string(error.what()) + ", for " + asked);
  }
}

}  // namespace meshtrain
