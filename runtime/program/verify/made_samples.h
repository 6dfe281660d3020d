#pragma once

#include <cstdint>
#include <optional>

#include "runtime/program/recipe/recipe.h"
#include "runtime/training/data/samples.h"

namespace meshtrain {

/// Generated samples for a recipe whose token file does not exist. They depend only on the seed and the sample's index,
/// and are not stored. With data.documents their documents have very different lengths, with separators if the recipe
/// names one, and some samples are one document. With data.ignore_id or data.loss_mask the numbers of counted labels
/// differ widely, at least one in each sample.
class MadeSamples final : public Samples {
 public:
  /// Ids are 0 .. vocab_size - 1. Throws InputError when data.documents or data.ignore_id is not one of them.
  MadeSamples(const SourceOptions& recipe, int64_t sequence_length, int64_t vocab_size, uint64_t seed);

  std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const override;

 private:
  std::optional<int64_t> documents_;  // the separator, or kDocumentsOfIndex
  std::optional<int64_t> ignore_id_;
  bool some_ignored_;
  bool boundary_ignored_;
  int64_t sequence_length_;
  int64_t vocab_size_;
  uint64_t seed_;
};

}  // namespace meshtrain
