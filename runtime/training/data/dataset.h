#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mesh/base/files/file_reader.h"
#include "runtime/training/data/options.h"
#include "runtime/training/data/samples.h"
#include "runtime/training/data/token_file.h"

namespace meshtrain {

/// The samples of one token file, S tokens and their labels each, addressed by global sample index g from 0 on: sample
/// g % n of epoch g / n, for n samples in the file. Its tokens depend on the file, its options and the seed alone, so
/// every rank of every mesh reads the same. Any thread may call; no collective.
class Dataset final : public Samples {
 public:
  /// Opens the file. `sequence_length`: S, at least 1. `key`: the recipe's key of this source, for messages. Throws
  /// InputError, with what was found and what would fit, when there is no file of tokens (naming data.source), when it
  /// is not a whole number of records (layout records), has less than one sample, or has an id that is negative or
  /// vocab_size or more, and when loss_mask does not have one byte for each token. All ids of a file up to 256 MiB are
  /// checked here; of a larger one those of some blocks here, and those of each sample when it is read.
  Dataset(const SourceOptions& options, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
          const std::string& key = "data");

  /// Returns n, the samples in the file. Tokens after the last complete sample of a stream are not used.
  int64_t num_samples() const { return num_samples_; }
  int64_t num_tokens() const { return tokens_.size(); }
  /// Returns whether one of the samples 0 to `num_samples` - 1 has a label that counts; reads until there is one.
  /// Throws as read() does.
  bool has_counted_label(int64_t num_samples) const;
  const std::filesystem::path& path() const { return tokens_.path(); }

  /// Returns which sample of the file g is: g % n, or, with shuffle, its image under the epoch's permutation.
  int64_t index_in_file(int64_t g) const;

  /// Reads sample g. Throws InputError with file, token index, id and vocab_size when an id is beyond the vocabulary;
  /// with file, sample and tokens when the disk fails or the file was cut short since.
  std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const override;

 private:
  int64_t first_token(int64_t g) const;
  std::vector<int64_t> find_starts(int64_t first, const int64_t* inputs) const;
  bool is_token(const IdRange& range) const { return range.least >= 0 && range.most < vocab_size_; }
  [[noreturn]] void refuse_id(int64_t token, int64_t id) const;
  void check_vocabulary() const;

  TokenFile tokens_;
  std::optional<FileReader> loss_mask_;  // byte i is 0 where token i is not counted as a label
  std::optional<int64_t> ignore_id_;
  std::optional<int64_t> documents_;
  bool boundaries_count_;
  bool shuffle_;
  int64_t sequence_length_;
  int64_t vocab_size_;
  uint64_t seed_;
  int64_t stride_;  // tokens from one sample's first to the next one's
  int64_t num_samples_;
};

}  // namespace meshtrain
