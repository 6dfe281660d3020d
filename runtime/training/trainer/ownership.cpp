#include "runtime/training/trainer/ownership.h"

#include "mesh/device/aten.h"
#include "runtime/training/trainer/operators/squared_norm.h"

namespace meshtrain {

Range owned_range(const FlatBuffer& buffer, const ReplicaMap& replicas) {
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

}  // namespace meshtrain
