#include "runtime/train/ownership.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshtrain {

std::vector<OwnedRange> owned_ranges(const std::vector<Unit>& units, const Holders& holders, int64_t tp_coordinate) {
  std::vector<OwnedRange> ranges;
  for (const Unit& unit : units) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      if (!buffer.trainable()) continue;
      const int64_t kept = buffer.shard().numel, share = (kept + holders.count - 1) / holders.count;
      const int64_t end = std::min(share * (holders.index + 1), kept);
      int64_t begin = std::min(share * holders.index, kept);
      if (tp_coordinate != 0) begin = std::max(begin, buffer.in_shard({0, buffer.whole_numel()}).numel);
      if (begin < end) ranges.push_back({&buffer, begin, end - begin});
    }
  }
  return ranges;
}

at::Tensor owned_squares(const std::vector<OwnedRange>& ranges, at::Device device) {
  at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  for (const OwnedRange& range : ranges) {
    const at::Tensor gradients = range.buffer->shard_gradients().narrow(0, range.offset, range.numel);
    squares.add_(at::linalg_vector_norm(gradients, 2, at::OptionalIntArrayRef{}, false, at::kDouble).square_());
  }
  return squares;
}

}  // namespace meshtrain
