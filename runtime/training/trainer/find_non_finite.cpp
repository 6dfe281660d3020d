#include "runtime/training/trainer/find_non_finite.h"

#include <algorithm>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// Checks the part of a parameter's gradient that this rank holds.
bool finite_gradient(const FlatBuffer& buffer, const Segment& segment) {
  const Range kept = buffer.in_shard({segment.offset, segment.numel});
  return buffer.shard_gradients().narrow(0, kept.offset, kept.numel).isfinite().all().item<bool>();
}

}  // namespace

std::string find_non_finite(const ParameterIndex& index, const std::vector<ParameterGroup>& groups,
                            const Group& world) {
  size_t first = index.size();
  for (const FlatBuffer* buffer : trainable_buffers(groups)) {
    for (const Segment& segment : buffer->segments()) {
      if (!finite_gradient(*buffer, segment)) first = std::min(first, index.number(segment.parameter->name));
    }
  }
  at::Tensor vote = at::full({1}, -static_cast<int64_t>(first), at::kLong);
  world.all_reduce(vote, Reduce::Max).wait();
  first = static_cast<size_t>(-vote.item<int64_t>());
  return first < index.size() ? index[first].name : "";
}

}  // namespace meshtrain
