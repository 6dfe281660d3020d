#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/data/samples.h"
#include "runtime/data/token_file.h"
#include "runtime/files/file_reader.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// The samples of one token file, S tokens and their labels each, addressed by global sample index g from 0 on: epoch
/// g / n, place g % n of it, for n samples in the file. What g is depends on the file, the recipe and the seed alone,
/// so every rank of every mesh finds the same. Any thread may call; no collective.
class Dataset final : public Samples {
 public:
  /// `sequence_length`: S, at least 1. `key`: where the recipe names this source, for messages. Throws InputError, with
  /// what was found and what fits, when there are no tokens (naming data.source), when they are no whole number of
  /// records (layout records), are fewer than one sample, hold an id that is negative or vocab_size or more, or when
  /// loss_mask has not one byte for each token. Files up to 256 MiB are searched for such ids here; larger ones in
  /// samples here and wholly as they are read.
  Dataset(const SourceRecipe& recipe, int64_t sequence_length, int64_t vocab_size, uint64_t seed,
          const std::string& key = "data");

  /// Samples in the file, n. Tokens behind the last whole sample of a stream are not used.
  int64_t num_samples() const { return num_samples_; }
  int64_t num_tokens() const { return tokens_.size(); }
  const std::filesystem::path& path() const { return tokens_.path(); }

  /// Which sample of the file g is: g % n, or, with shuffle, its place in the epoch's permutation.
  int64_t place(int64_t g) const;

  /// Throws InputError with file, token index, id and vocab_size when an id is beyond the vocabulary; with file, sample
  /// and tokens when the disk fails or the file was cut short since.
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
