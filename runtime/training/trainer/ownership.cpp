#include "runtime/training/trainer/ownership.h"

#include <algorithm>

#include "mesh/device/aten.h"
#include "runtime/training/trainer/operators/squared_norm.h"

namespace meshtrain {

Range owned_range(const FlatBuffer& buffer, const ReplicaMap& replicas) {
  if (buffer.is_copy()) return {};
  return replicas.owned(buffer.shard().numel, buffer.in_shard({0, buffer.full_numel()}).numel);
}

std::vector<OwnedRange> owned_ranges(const std::vector<ParameterGroup>& groups) {
  std::vector<OwnedRange> ranges;
  for (const ParameterGroup& group : groups) {
    for (const FlatBuffer* buffer : trainable_buffers(group.fsdp->units())) {
      const Range owned = owned_range(*buffer, group.replicas);
      if (owned.numel > 0) ranges.push_back({buffer, owned.offset, owned.numel});
    }
  }
  return ranges;
}

at::Tensor owned_squares(const std::vector<OwnedRange>& ranges, at::Device device) {
  at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  for (const OwnedRange& range : ranges) {
    const at::Tensor gradients = range.buffer->shard_gradients().narrow(0, range.offset, range.numel);
    squares.add_(squared_norm(gradients));
    set_aside(gradients);
  }
  return squares;
}

LeavingSquares::LeavingSquares(const std::vector<OwnedRange>& ranges, at::Device device)
    : ranges_(ranges),
      squares_(at::zeros({static_cast<int64_t>(ranges.size())}, at::TensorOptions(device).dtype(at::kDouble))) {}

void LeavingSquares::take(const FlatBuffer& buffer, const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  const auto range = std::ranges::find(ranges_, &buffer, &OwnedRange::buffer);
  if (range == ranges_.end()) return;
  squares_[range - ranges_.begin()].copy_(squared_norm(gradients.narrow(0, range->offset, range->numel)));
}

at::Tensor LeavingSquares::sum() const {
  at::Tensor sum = at::zeros({}, squares_.options());
  for (int64_t i = 0; i < squares_.size(0); ++i) sum.add_(squares_[i]);
  return sum;
}

}  // namespace meshtrain
