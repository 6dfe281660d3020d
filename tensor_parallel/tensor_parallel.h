#pragma once

#include <cstdint>
#include <string>

#include "mesh/group.h"

namespace meshtrain {

/// The cut of the layers: the tp group, and whether the residual stream [T, M] is split over it between layers.
///
/// Bytes that a rank of t sends for T tokens, in units of (t - 1) / t x, with x the bytes of their residual stream
/// (Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022):
///   a block          8; 10 under sequence parallel; 4 more when the backward repeats its forward
///   embedding, head  2 each
/// In addition the loss all-reduces 3 T numbers.
struct TensorParallel {
  Group group;
  bool sequence_parallel = false;

  /// Returns true when a rank holds T/tp rows of the residual stream. For one rank sequence parallel has no effect.
  bool splits_rows() const { return sequence_parallel && group.size() > 1; }

  /// Returns the heads of each rank; `heads` is a multiple of the ranks.
  int64_t local_heads(int64_t heads) const { return heads / group.size(); }

  // Values of Parameter::partial_over for weights that every rank holds:

  /// Returns it for a norm over the residual stream: under sequence parallel each rank sees only its own rows
  std::string stream_partial_over() const { return sequence_parallel ? group.name() : ""; }
  /// Returns it for a norm over heads: each rank sees only its own heads
  std::string heads_partial_over() const { return group.name(); }
};

}  // namespace meshtrain
