#pragma once

#include <cstdint>
#include <optional>

#include "runtime/data/samples.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// Samples for a recipe whose tokens are not there: drawn from the seed and the sample's index alone, kept nowhere.
/// With data.documents there are documents of very different length, with separators where these are named, and some
/// samples are one. With
/// data.ignore_id or data.loss_mask, samples count very different numbers of labels, at least one each.
class MadeSamples final : public Samples {
 public:
  /// Ids are 0 .. vocab_size - 1. Throws InputError when data.documents or data.ignore_id is none of them.
  MadeSamples(const SourceRecipe& recipe, int64_t sequence_length, int64_t vocab_size, uint64_t seed);

  std::vector<int64_t> read(int64_t g, int64_t* inputs, int64_t* labels) const override;

 private:
  std::optional<int64_t> documents_;  // the separator, or those of an index
  std::optional<int64_t> ignore_id_;
  bool some_ignored_;
  bool boundary_ignored_;
  int64_t sequence_length_;
  int64_t vocab_size_;
  uint64_t seed_;
};

}  // namespace meshtrain
