#include "runtime/trainer/ownership.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "runtime/trainer/squared_norm.h"

namespace meshtrain {

Range owned_range(const FlatBuffer& buffer, const Keepers& keepers) {
  const Keepers::Place place = keepers.own();
  const int64_t num_copies = keepers.copies.size();
  const int64_t kept = buffer.shard().numel, share = (kept + num_copies - 1) / num_copies;
  const int64_t end = std::min(share * (place.copy + 1), kept);
  int64_t begin = std::min(share * place.copy, kept);
  if (place.tp != 0) begin = std::max(begin, buffer.in_shard({0, buffer.whole_numel()}).numel);
  return {begin, std::max<int64_t>(end - begin, 0)};
}

std::vector<OwnedRange> owned_ranges(const std::vector<Unit>& units, const Keepers& keepers) {
  std::vector<OwnedRange> ranges;
  for (const FlatBuffer* buffer : trainable_buffers(units)) {
    const Range owned = owned_range(*buffer, keepers);
    if (owned.numel > 0) ranges.push_back({buffer, owned.offset, owned.numel});
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
