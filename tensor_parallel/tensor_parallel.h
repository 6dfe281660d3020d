#pragma once

#include <cstdint>
#include <string>

#include "mesh/group.h"

namespace meshtrain {

/// How layers are cut: the tp group, and whether the residual stream [T, M] is split over it between them.
struct TensorParallel {
  Group group;
  bool sequence_parallel = false;

  /// True when a rank holds T/tp rows of the residual stream. Sequence parallel over one rank is the same as off.
  bool splits_rows() const { return sequence_parallel && group.size() > 1; }

  /// Heads of each rank; `heads` is a multiple of the ranks.
  int64_t local_heads(int64_t heads) const { return heads / group.size(); }

  // Parameter::partial_over of weights that every rank holds:

  /// A norm's over the residual stream: under sequence parallel each rank sees its own rows only.
  std::string stream_partial_over() const { return sequence_parallel ? group.name() : ""; }
  /// A norm's over heads: each rank sees its own heads only.
  std::string heads_partial_over() const { return group.name(); }
};

}  // namespace meshtrain
