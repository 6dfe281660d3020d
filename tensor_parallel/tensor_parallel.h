#pragma once

#include "mesh/group.h"

namespace meshtrain {

/// How layers are cut: the tp group, and whether the residual stream [T, M] is split over it between them.
struct TensorParallel {
  Group group;
  bool sequence_parallel = false;

  /// Whether a rank holds T/tp rows of the residual stream. Sequence parallel over one rank is the same as off.
  bool splits_rows() const { return sequence_parallel && group.size() > 1; }
};

}  // namespace meshtrain
