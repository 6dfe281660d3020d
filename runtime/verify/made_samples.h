#pragma once

#include <cstdint>
#include <optional>

#include "runtime/config/recipe.h"
#include "runtime/data/samples.h"

namespace meshtrain {

/// Samples for a recipe whose tokens are not there: drawn from the seed and the sample's index alone, kept nowhere.
/// With data.documents, separators stand between documents of very different length, and some samples have none. With
/// data.ignore_id or data.loss_mask, samples count very different numbers of labels, at least one each.
class MadeSamples final : public Samples {
 public:
  /// Ids are 0 .. vocab_size - 1. Throws InputError when data.documents or data.ignore_id is none of them.
  MadeSamples(const DataRecipe& recipe, int64_t sequence_length, int64_t vocab_size, uint64_t seed);

  void read(int64_t g, int64_t* inputs, int64_t* labels) const override;

 private:
  std::optional<int64_t> separator_;
  std::optional<int64_t> ignore_id_;
  bool some_ignored_;
  bool boundary_ignored_;
  int64_t sequence_length_;
  int64_t vocab_size_;
  uint64_t seed_;
};

}  // namespace meshtrain
