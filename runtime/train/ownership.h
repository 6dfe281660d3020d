#pragma once

#include <vector>

#include "fsdp/unit.h"
#include "mesh/device_mesh.h"

namespace meshtrain {

/// Part of a flat buffer that this rank owns.
struct OwnedRange {
  const FlatBuffer* buffer;
  int64_t offset;
  int64_t numel;
};

/// What this rank owns of the trainable buffers of `units`: every element of the model has exactly one owner among
/// its replicas (design rule 3). The replicas over dp x cp own equal ranges; what all tp ranks hold whole belongs to
/// the first of them.
std::vector<OwnedRange> owned_ranges(const std::vector<Unit>& units, const DeviceMesh& mesh);

/// Sum over `ranges` of the squared gradients: an fp64 scalar on the buffers' device. No collective.
at::Tensor owned_squares(const std::vector<OwnedRange>& ranges, at::Device device);

}  // namespace meshtrain
