#include "runtime/training/data/packed_writer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "mesh/base/error.h"
#include "runtime/training/data/megatron_index.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

template <typename Number>
void append_numbers(OutputFile& file, const std::vector<Number>& numbers) {
  if (!numbers.empty()) file.append(numbers.data(), numbers.size() * sizeof(Number));
}

}  // namespace

fs::path PackedWriter::mask_of(const fs::path& path) {
  return fs::path(path).replace_extension(".mask");
}

PackedWriter::PackedWriter(const fs::path& path, const std::string& dtype, int64_t record, int64_t padding, bool packs)
    : index_path_(MegatronIndex::path_of(path)),
      dtype_(dtype),
      record_(static_cast<size_t>(record)),
      padding_(padding),
      packs_(packs),
      tokens_(path, PageCache::Dropped),
      mask_(mask_of(path), PageCache::Dropped),
      index_(index_path_) {
  if (dtype != "uint16" && dtype != "int32")
    throw std::invalid_argument("packed tokens must have dtype uint16 or int32, not " + dtype);
}

void PackedWriter::add(const std::vector<int64_t>& ids, const std::vector<uint8_t>& counted) {
  if (ids.empty() || ids.size() > record_ || ids.size() != counted.size()) {
    throw std::invalid_argument("a sample of " + std::to_string(ids.size()) + " tokens");
  }
  const auto used = [](const Record& record) { return record.ids.size(); };
  Record* best = nullptr;
  for (Record& record : open_) {
    if (used(record) + ids.size() <= record_ && (best == nullptr || used(record) > used(*best))) best = &record;
  }
  if (best == nullptr) {
    if (open_.size() == kOpenRecords) {
      const auto fullest = std::ranges::max_element(open_, {}, used);
      write(*fullest);
      open_.erase(fullest);
    }
    best = &open_.emplace_back();
  }
  best->ids.insert(best->ids.end(), ids.begin(), ids.end());
  best->mask.push_back(0);
  best->mask.insert(best->mask.end(), counted.begin() + 1, counted.end());
  best->lengths.push_back(static_cast<int64_t>(ids.size()));
  ++num_samples_;
  num_counted_ += std::count(counted.begin() + 1, counted.end(), uint8_t{1});
  if (packs_ && used(*best) < record_) return;
  write(*best);
  open_.erase(open_.begin() + (best - open_.data()));
}

void PackedWriter::write(Record& record) {
  const size_t room = record_ - record.ids.size();
  if (room > 0) {
    record.ids.resize(record_, padding_);
    record.mask.resize(record_, 0);
    record.lengths.push_back(static_cast<int64_t>(room));
    num_padding_ += static_cast<int64_t>(room);
  }
  if (dtype_ == "uint16") {
    append_numbers(tokens_, std::vector<uint16_t>(record.ids.begin(), record.ids.end()));
  } else {
    append_numbers(tokens_, std::vector<int32_t>(record.ids.begin(), record.ids.end()));
  }
  append_numbers(mask_, record.mask);
  lengths_.insert(lengths_.end(), record.lengths.begin(), record.lengths.end());
  ++num_records_;
}

void PackedWriter::write_index() {
  constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
  const uint64_t version = 1, sequences = lengths_.size(), bounds = lengths_.size() + 1;
  const uint8_t code = dtype_ == "uint16" ? 8 : 4;
  const int64_t width = dtype_ == "uint16" ? 2 : 4;
  index_.append(kMagic.data(), kMagic.size());
  index_.append(&version, sizeof version);
  index_.append(&code, sizeof code);
  index_.append(&sequences, sizeof sequences);
  index_.append(&bounds, sizeof bounds);
  append_numbers(index_, lengths_);
  std::vector<int64_t> numbers;
  int64_t first = 0;
  for (const int32_t length : lengths_) {
    numbers.push_back(first);
    first += length * width;
  }
  append_numbers(index_, numbers);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
  numbers.push_back(static_cast<int64_t>(lengths_.size()));
  append_numbers(index_, numbers);
}

TokenSidecar PackedWriter::sidecar_of(TokenSidecar origin) const {
  const auto record = static_cast<int64_t>(record_);
  origin.dtype = dtype_;
  origin.tokens = num_records_ * record;
  origin.layout = SampleLayout::Records;
  origin.index = index_path_.filename();
  origin.loss_mask = mask_.path().filename();
  origin.sequence_length = record - 1;
  origin.samples = num_samples_;
  return origin;
}

void PackedWriter::finish(const TokenSidecar& origin) {
  for (Record& record : open_) write(record);
  open_.clear();
  write_index();
  for (OutputFile* file : {&mask_, &tokens_, &index_}) file->sync();
  SidecarReplacement replacement(tokens_.path(), sidecar_of(origin));
  // From here to the end only names change. Without an index tokens are refused, old ones and new ones.
  replacement.begin();
  std::error_code error;
  fs::remove(index_path_, error);
  if (error) throw std::runtime_error("cannot replace " + index_path_.string() + ": " + error.message());
  sync_folder(index_path_.parent_path());
  mask_.finish();
  tokens_.finish();
  index_.finish();
  replacement.finish();
}

}  // namespace meshtrain
