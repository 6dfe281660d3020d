#pragma once

#include <vector>

#include "fsdp/parameter_group.h"

namespace meshtrain {

/// A part of the shard of a flat buffer that this rank owns.
struct OwnedRange {
  const FlatBuffer* buffer;
  int64_t offset;  ///< in the shard
  int64_t numel;
};

/// Returns the part of this rank's shard of `buffer` that it owns, which may be empty (ReplicaMap::owned()).
Range owned_range(const FlatBuffer& buffer, const ReplicaMap& replicas);

/// Returns the ranges that this rank owns of the trainable buffers of `groups`, without empty ones.
std::vector<OwnedRange> owned_ranges(const std::vector<ParameterGroup>& groups);

/// Returns the sum of the squared gradients over `ranges`: an fp64 scalar on the buffers' device. Not collective.
at::Tensor owned_squares(const std::vector<OwnedRange>& ranges, at::Device device);

}  // namespace meshtrain
