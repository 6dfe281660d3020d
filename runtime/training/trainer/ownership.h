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

/// Returns the part of this rank's shard of `buffer` that it owns (ReplicaMap::owned()), which may be empty: that of a
/// copy is.
Range owned_range(const FlatBuffer& buffer, const ReplicaMap& replicas);

/// Returns the ranges that this rank owns of the trainable buffers of `groups`, without empty ones.
std::vector<OwnedRange> owned_ranges(const std::vector<ParameterGroup>& groups);

/// Returns the sum of the squared gradients over `ranges`: an fp64 scalar on the buffers' device. Not collective.
at::Tensor owned_squares(const std::vector<OwnedRange>& ranges, at::Device device);

/// Squares of offloaded gradients, computed on the device before the gradients leave for the host (Fsdp::on_reduced()).
class LeavingSquares {
 public:
  /// `ranges` must outlive this.
  LeavingSquares(const std::vector<OwnedRange>& ranges, at::Device device);

  /// Computes the squares of the owned part of `gradients`, the shard of `buffer`.
  void take(const FlatBuffer& buffer, const at::Tensor& gradients);
  /// Returns the sum of the last squares, in the order in which owned_squares() adds those of gradients that stay.
  at::Tensor sum() const;

 private:
  const std::vector<OwnedRange>& ranges_;
  at::Tensor squares_;  // fp64, of each range
};

}  // namespace meshtrain
