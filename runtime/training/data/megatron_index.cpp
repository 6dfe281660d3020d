#include "runtime/training/data/megatron_index.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

struct Code {
  uint8_t code;
  const char* dtype;
  int64_t width;
};
constexpr Code kCodes[] = {{1, "uint8", 1}, {2, "int8", 1},  {3, "int16", 2},
                           {4, "int32", 4}, {5, "int64", 8}, {8, "uint16", 2}};

template <class Number>
Number number_at(const std::byte* bytes) {
  Number value;  // they are not aligned
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// A reader of `count` contiguous numbers of a file, from byte `begin` on, a window at a time.
template <class Number>
class Numbers {
 public:
  Numbers(const FileReader& file, int64_t begin, int64_t count, int64_t window)
      : file_(file), begin_(begin), count_(count), window_(window) {}

  int64_t at(int64_t index) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Number));
    if (index < first_ || index >= first_ + bytes_.size() / kBytes) {
      first_ = index;
      bytes_ = file_.read(begin_ + index * kBytes, std::min(window_, count_ - index) * kBytes);
    }
    return number_at<Number>(bytes_.data() + (index - first_) * kBytes);
  }

 private:
  const FileReader& file_;
  int64_t begin_, count_, window_;
  int64_t first_ = 0;
  FileBytes bytes_;
};

constexpr int64_t kLongWindow = int64_t{1} << 16, kShortWindow = 64;  // numbers

/// Returns the index beside `tokens`. Throws InputError when there is none, as data prepare leaves it for a moment.
std::filesystem::path existing_index(const std::filesystem::path& tokens) {
  const std::filesystem::path index = MegatronIndex::path_of(tokens);
  std::error_code ignored;
  if (std::filesystem::symlink_status(index, ignored).type() == std::filesystem::file_type::not_found) {
    throw InputError("cannot read " + index.string() +
                     ": No such file or directory; it is missing if data prepare was interrupted while it replaced the "
                     "tokens: prepare the tokens again, or put their index there");
  }
  return index;
}

}  // namespace

MegatronIndex::MegatronIndex(const std::filesystem::path& tokens, int64_t num_bytes) : file_(existing_index(tokens)) {
  read_header();
  read_sequences(num_bytes);
  check_documents();
}

bool MegatronIndex::is_beside(const std::filesystem::path& tokens) {
  if (tokens.extension() != ".bin") return false;
  std::error_code unreadable;
  const std::filesystem::path index = path_of(tokens);
  if (!std::filesystem::is_regular_file(index, unreadable)) return false;
  char begin[kMagic.size()] = {};
  std::ifstream(index, std::ios::binary).read(begin, sizeof begin);
  return std::string_view(begin, sizeof begin) == kMagic;
}

std::filesystem::path MegatronIndex::path_of(const std::filesystem::path& tokens) {
  if (tokens.extension() == ".bin") return std::filesystem::path(tokens).replace_extension(".idx");
  throw InputError(tokens.string() + ": dtype megatron needs the path of a file NAME.bin with NAME.idx next to it");
}

void MegatronIndex::read_header() {
  const FileBytes header = file_.read(0, std::min(file_.size(), kHeaderBytes));
  const std::byte* const data = header.data();
  if (header.size() < kHeaderBytes || std::memcmp(data, kMagic.data(), kMagic.size()) != 0) {
    fail("it does not begin as a Megatron index does (MMIDIDX)");
  }
  const auto version = number_at<uint64_t>(data + 9);
  if (version != 1) fail("its version is " + std::to_string(version) + ", but only version 1 can be read");
  const auto code = number_at<uint8_t>(data + 17);
  const auto* const known = std::ranges::find(kCodes, code, &Code::code);
  if (known == std::end(kCodes)) {
    fail("its dtype has code " + std::to_string(code) +
         ", but must be one of 1 (uint8), 2 (int8), 3 (int16), 4 (int32), 5 (int64) and 8 (uint16)");
  }
  dtype_ = known->dtype;
  width_ = known->width;
  const auto sequences = number_at<uint64_t>(data + 18), bounds = number_at<uint64_t>(data + 26);
  const auto room = static_cast<uint64_t>(file_.size() - kHeaderBytes);
  if (sequences > room / 12 || bounds > room / 8 || 12 * sequences + 8 * bounds != room) {
    fail("its " + std::to_string(file_.size()) + " bytes do not fit its header, which counts " +
         std::to_string(sequences) + " sequences (12 bytes each) and " + std::to_string(bounds) +
         " bounds of documents (8 each): it was cut short, or is of another kind");
  }
  num_sequences_ = static_cast<int64_t>(sequences);
  num_bounds_ = static_cast<int64_t>(bounds);
}

void MegatronIndex::read_sequences(int64_t num_bytes) {
  Numbers<int32_t> lengths(file_, lengths_begin(), num_sequences_, kLongWindow);
  Numbers<int64_t> pointers(file_, pointers_begin(), num_sequences_, kLongWindow);
  int64_t next = -1;  // byte after the sequence before
  for (int64_t i = 0; i < num_sequences_; ++i) {
    const int64_t tokens = lengths.at(i), first = pointers.at(i);
    const bool inside = tokens >= 0 && first >= 0 && first <= num_bytes && tokens <= (num_bytes - first) / width_;
    if (!inside || first % width_ != 0) {
      fail("sequence " + std::to_string(i) + ", " + std::to_string(tokens) + " tokens of " + dtype_ + " from byte " +
           std::to_string(first) + " on, does not lie in the " + std::to_string(num_bytes) + " bytes of the .bin file");
    }
    if (first != next) stretches_.push_back({num_tokens_, first, i});
    if (tokens > std::numeric_limits<int64_t>::max() - num_tokens_) fail("it lists more tokens than can be counted");
    num_tokens_ += tokens;
    next = first + tokens * width_;
  }
}

void MegatronIndex::check_documents() const {
  Numbers<int64_t> bounds(file_, bounds_begin(), num_bounds_, kLongWindow);
  if (num_bounds_ == 0 || bounds.at(0) != 0 || bounds.at(num_bounds_ - 1) != num_sequences_) {
    fail("its bounds of documents do not go from 0 to its " + std::to_string(num_sequences_) + " sequences");
  }
  int64_t before = 0;
  for (int64_t i = 0; i < num_bounds_; ++i) {
    const int64_t bound = bounds.at(i);
    if (bound < before) fail("document " + std::to_string(i - 1) + " ends before it begins");
    before = bound;
  }
}

MegatronIndex::Run MegatronIndex::run_at(int64_t token) const {
  const auto after = std::ranges::upper_bound(stretches_, token, {}, &Stretch::first_token);
  const Stretch& stretch = *std::prev(after);
  const int64_t end = after == stretches_.end() ? num_tokens_ : after->first_token;
  return {stretch.first_byte + (token - stretch.first_token) * width_, end - token};
}

std::vector<int64_t> MegatronIndex::document_starts(int64_t first, int64_t end) const {
  constexpr int64_t kAtOnce = 16;
  int64_t low = 0, high = num_documents();  // the first that begins there is in [low, high]
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (starts_of(middle, 1).front() < first) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  std::vector<int64_t> starts;
  for (; low < num_documents(); low += kAtOnce) {
    for (const int64_t start : starts_of(low, std::min(kAtOnce, num_documents() - low))) {
      if (start >= end) return starts;
      if (starts.empty() || starts.back() != start) starts.push_back(start);
    }
  }
  return starts;
}

std::vector<int64_t> MegatronIndex::starts_of(int64_t first, int64_t count) const {
  Numbers<int64_t> bounds(file_, bounds_begin() + 8 * first, count, kLongWindow);
  Numbers<int64_t> pointers(file_, pointers_begin(), num_sequences_, std::min(count, kShortWindow));
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sequence = bounds.at(i);
    if (sequence == num_sequences_) {
      starts.push_back(num_tokens_);
      continue;
    }
    const auto after = std::ranges::upper_bound(stretches_, sequence, {}, &Stretch::first_sequence);
    const Stretch& stretch = *std::prev(after);
    starts.push_back(stretch.first_token + (pointers.at(sequence) - stretch.first_byte) / width_);
  }
  return starts;
}

int64_t MegatronIndex::lengths_begin() const {
  return kHeaderBytes;
}

int64_t MegatronIndex::pointers_begin() const {
  return lengths_begin() + 4 * num_sequences_;
}

int64_t MegatronIndex::bounds_begin() const {
  return pointers_begin() + 8 * num_sequences_;
}

void MegatronIndex::fail(const std::string& what) const {
  throw InputError(file_.path().string() + ": " + what);
}

}  // namespace meshtrain
