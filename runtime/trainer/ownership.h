#pragma once

#include <vector>

#include "fsdp/unit.h"
#include "mesh/replica_map.h"

namespace meshtrain {

/// Part of the shard of a flat buffer that this rank owns.
struct OwnedRange {
  const FlatBuffer* buffer;
  int64_t offset;  ///< in the shard
  int64_t numel;
};

/// Returns what this rank owns of its shard of `buffer`, perhaps nothing (ReplicaMap::owned()).
Range owned_range(const FlatBuffer& buffer, const ReplicaMap& replicas);

/// Returns those of the trainable buffers of `units` that are not empty.
std::vector<OwnedRange> owned_ranges(const std::vector<Unit>& units, const ReplicaMap& replicas);

/// Sum over `ranges` of the squared gradients: an fp64 scalar on the buffers' device. No collective.
at::Tensor owned_squares(const std::vector<OwnedRange>& ranges, at::Device device);

}  // namespace meshtrain
