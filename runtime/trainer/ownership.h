#pragma once

#include <vector>

#include "fsdp/unit.h"
#include "runtime/optimizer/keepers.h"

namespace meshtrain {

/// Part of the shard of a flat buffer that this rank owns.
struct OwnedRange {
  const FlatBuffer* buffer;
  int64_t offset;  ///< in the shard
  int64_t numel;
};

/// What this rank owns of its shard of `buffer`, perhaps nothing: every element of the model has exactly one owner
/// among its replicas (design rule 3). Those who hold the same shard own equal ranges of it; what all tp ranks hold
/// whole belongs to the first of them.
Range owned_range(const FlatBuffer& buffer, const Keepers& keepers);

/// Those of the trainable buffers of `units` that are not empty.
std::vector<OwnedRange> owned_ranges(const std::vector<Unit>& units, const Keepers& keepers);

/// Sum over `ranges` of the squared gradients: an fp64 scalar on the buffers' device. No collective.
at::Tensor owned_squares(const std::vector<OwnedRange>& ranges, at::Device device);

}  // namespace meshtrain
