#include "runtime/training/data/dataset.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "mesh/base/error.h"
#include "runtime/training/data/check_tokens.h"
#include "runtime/training/data/documents.h"
#include "runtime/training/data/file_kind.h"
#include "runtime/training/data/permutation.h"

namespace meshtrain {
namespace {

constexpr int64_t kReadBytes = int64_t{64} << 10;
constexpr int64_t kScannedBytes = int64_t{256} << 20;  // files up to this size are searched completely
constexpr int64_t kSampledBlocks = 1024;

TokenFile open_tokens(const SourceOptions& options, const std::string& key) {
  std::error_code unreadable;
  if (!options.source.empty() && !std::filesystem::exists(options.tokens, unreadable)) {
    throw InputError(key + ".tokens", options.tokens.string() +
                                          " does not exist; according to the recipe it comes from: " + options.source);
  }
  try {
    return TokenFile(options.tokens, options.dtype);
  } catch (const InputError& error) {
    throw InputError(key + ".tokens", error.problem());
  }
}

int64_t count_samples(const TokenFile& tokens, const SourceOptions& options, int64_t sequence_length,
                      const std::string& key) {
  const std::string found = tokens.path().string() + ": " + std::to_string(tokens.size()) + " tokens";
  const int64_t record = sequence_length + 1;
  const Key length{"train.sequence_length"};
  const Wording needed = std::to_string(record) + " (" + length + " + 1)";
  if (tokens.size() < record) throw InputError(found + " are fewer than one sample of " + needed);
  if (options.layout == SampleLayout::Stream) return (tokens.size() - 1) / sequence_length;
  const int64_t rest = tokens.size() % record;
  if (rest != 0) {
    const bool are_packed =
        options.documents == kDocumentsOfIndex && !options.loss_mask.empty();  // by data prepare --chat
    throw InputError(
        found + " are not a whole number of records of " + needed + ": " + std::to_string(tokens.size() / record) +
        " fit and " + std::to_string(rest) + " are left over; the file was cut short, " +
        (are_packed ? "or has records of another length: set the " + length + " that it was made with"
                    : "has records of another length, or is a stream (" + Setting{key + ".layout", "stream"} + ")"));
  }
  return tokens.size() / record;
}

}  // namespace

Dataset::Dataset(const SourceOptions& options, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
                 const std::string& key)
    : tokens_(open_tokens(options, key)),
      ignore_id_(options.ignore_id),
      documents_(options.documents),
      boundaries_count_(options.boundaries_count),
      shuffle_(options.shuffle),
      sequence_length_(sequence_length),
      vocab_size_(vocab_size),
      seed_(seed),
      stride_(options.layout == SampleLayout::Stream ? sequence_length : sequence_length + 1) {
  if (sequence_length < 1) {
    throw InputError(Key{"train.sequence_length"} + " is " + std::to_string(sequence_length) +
                     ", it must be at least 1");
  }
  if (vocab_size < 1) throw InputError("vocab_size is " + std::to_string(vocab_size) + ", it must be at least 1");
  if (ignore_id_ && (*ignore_id_ < 0 || *ignore_id_ >= vocab_size)) {
    throw InputError(Key{key + ".ignore_id"} + " is " + std::to_string(*ignore_id_) + ", token ids are 0 to " +
                     std::to_string(vocab_size - 1) + ": name the id whose labels do not count, or leave it out");
  }
  if (documents_ == kDocumentsOfIndex && !tokens_.index()) {
    throw InputError(key + ".documents", "index needs a file of Megatron, with dtype megatron; " +
                                             tokens_.path().string() + " is read as " + options.dtype);
  }
  num_samples_ = count_samples(tokens_, options, sequence_length, key);
  if (!options.loss_mask.empty()) {
    loss_mask_.emplace(options.loss_mask);
    if (loss_mask_->size() != tokens_.size()) {
      throw InputError(options.loss_mask.string() + ": a loss mask has one byte a token, this one has " +
                       std::to_string(loss_mask_->size()) + " bytes for the " + std::to_string(tokens_.size()) +
                       " tokens of " + tokens_.path().string());
    }
  }
  check_vocabulary();
}

int64_t Dataset::index_in_file(int64_t g) const {
  if (g < 0) throw std::out_of_range("sample " + std::to_string(g));
  const int64_t index = g % num_samples_;
  if (!shuffle_) return index;
  const uint64_t epoch = static_cast<uint64_t>(g / num_samples_);
  return Permutation(num_samples_, mix(seed_, epoch))(index);
}

std::vector<int64_t> Dataset::read(int64_t g, int64_t* inputs, int64_t* labels) const {
  const int64_t first = first_token(g);
  std::vector<int64_t> ids(static_cast<size_t>(sequence_length_ + 1));
  FileBytes mask;
  try {
    tokens_.read(first, sequence_length_ + 1, ids.data());
    if (loss_mask_) mask = loss_mask_->read(first + 1, sequence_length_);
  } catch (const InputError& error) {
    throw InputError(std::string(error.what()) + ", in sample " + std::to_string(first / stride_));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size_) refuse_id(first + static_cast<int64_t>(i), ids[i]);
  }
  std::copy(ids.begin(), ids.end() - 1, inputs);
  std::copy(ids.begin() + 1, ids.end(), labels);
  if (ignore_id_) std::replace(labels, labels + sequence_length_, *ignore_id_, kIgnoredLabel);
  for (int64_t i = 0; loss_mask_ && i < sequence_length_; ++i) {
    if (mask.data()[i] == std::byte{0}) labels[i] = kIgnoredLabel;
  }
  if (!documents_) return {};
  return divide_sample(find_starts(first, inputs), sequence_length_, boundaries_count_ ? nullptr : labels);
}

bool Dataset::has_counted_label(int64_t num_samples) const {
  const bool ignores = ignore_id_ || loss_mask_ || (documents_ && !boundaries_count_);
  if (!ignores) return true;
  std::vector<int64_t> inputs(static_cast<size_t>(sequence_length_)), labels(inputs.size());
  for (int64_t g = 0; g < num_samples; ++g) {
    read(g, inputs.data(), labels.data());
    if (std::ranges::any_of(labels, [](int64_t label) { return label != kIgnoredLabel; })) return true;
  }
  return false;
}

std::vector<int64_t> Dataset::find_starts(int64_t first, const int64_t* inputs) const {
  if (*documents_ != kDocumentsOfIndex) return find_documents(inputs, sequence_length_, *documents_);
  std::vector<int64_t> starts = tokens_.index()->document_starts(first + 1, first + sequence_length_ + 1);
  for (int64_t& start : starts) start -= first;
  return starts;
}

int64_t Dataset::first_token(int64_t g) const {
  return index_in_file(g) * stride_;
}

void Dataset::refuse_id(int64_t token, int64_t id) const {
  const std::optional<std::string> looks_like = other_dtype(tokens_);
  const std::string no_tokens = describe_no_tokens(tokens_.path(), tokens_.dtype());
  throw InputError(tokens_.path().string() + ": token " + std::to_string(token) + " has id " + std::to_string(id) +
                   (id < 0 ? ", which is negative" : ", beyond the vocabulary of " + std::to_string(vocab_size_)) +
                   (no_tokens.empty() ? ": the file was made for another model, or " + Key{"data.dtype"} + " is wrong" +
                                            (looks_like ? ": its ids look like those of " +
                                                              (*looks_like == "int64" ? advice_on_int64() : *looks_like)
                                                        : "")
                                      : Wording(no_tokens)));
}

void Dataset::check_vocabulary() const {
  if (!tokens_.is_signed() && vocab_size_ >> (8 * tokens_.width()) != 0) return;  // it cannot hold a larger id
  const int64_t block = kReadBytes / tokens_.width();
  const int64_t num_blocks = (tokens_.size() + block - 1) / block;
  const bool full = tokens_.size() * tokens_.width() <= kScannedBytes;
  const int64_t looked_at = full ? num_blocks : kSampledBlocks;
  for (int64_t i = 0; i < looked_at; ++i) {
    const int64_t at = full ? i : i * (num_blocks - 1) / (kSampledBlocks - 1);  // first and last among them
    const int64_t first = at * block, count = std::min(block, tokens_.size() - first);
    if (is_token(tokens_.range(first, count))) continue;
    for (int64_t token = first; token < first + count; ++token) {
      const IdRange id = tokens_.range(token, 1);
      if (!is_token(id)) refuse_id(token, id.most);
    }
  }
}

}  // namespace meshtrain
