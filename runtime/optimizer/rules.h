#pragma once

#include <vector>

#include "fsdp/flat_buffer.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// How a parameter is updated.
struct UpdateRule {
  bool whole_matrix = false;  ///< by Muon; else element by element
  double rate = 1;            ///< times the learning rate
  double weight_decay = 0;

  bool operator==(const UpdateRule&) const = default;
};

/// What the recipe says of `parameter`. Of optimizer.groups the first whose pattern matches its name counts. Under muon
/// matrices are updated whole, but for embedding and head, and everything else by AdamW at a rate of its own.
UpdateRule rule_of(const Parameter& parameter, const OptimizerRecipe& recipe);

/// A range of this rank's shard of a buffer whose elements share one rule.
struct UpdateRange {
  Range range;  ///< in the shard
  UpdateRule rule;
};

/// Cuts what this rank keeps of a buffer into as few ranges as possible; no element is left out but padding.
std::vector<UpdateRange> update_ranges(const FlatBuffer& buffer, const OptimizerRecipe& recipe);

}  // namespace meshtrain
