#pragma once

#include <vector>

#include "fsdp/flat_buffer.h"
#include "runtime/training/optimizer/options.h"

namespace meshtrain {

/// The rule by which a parameter is updated.
struct UpdateRule {
  bool full_matrix = false;  ///< updated by Muon; else element by element
  double rate = 1;           ///< multiplies the learning rate
  double weight_decay = 0;

  bool operator==(const UpdateRule&) const = default;
};

/// Returns the rule for `parameter`. The first of `options.groups` whose pattern matches its name counts.
/// Under muon matrices except embedding and head are updated as full matrices, each of a stack for itself, and
/// everything else by AdamW at a rate of its own.
UpdateRule rule_of(const Parameter& parameter, const OptimizerOptions& options);

/// A range of this rank's shard of a buffer whose elements share one rule.
struct UpdateRange {
  Range range;  ///< in the shard
  UpdateRule rule;
};

/// Divides this rank's shard of a buffer into as few ranges as possible; only padding is left out.
std::vector<UpdateRange> update_ranges(const FlatBuffer& buffer, const OptimizerOptions& options);

}  // namespace meshtrain
