#include "runtime/train/ownership.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshtrain {

std::vector<OwnedRange> owned_ranges(const std::vector<Unit>& units, const DeviceMesh& mesh) {
  const Group& replicas = mesh.group(std::set<std::string>{"dp", "cp"});
  std::vector<OwnedRange> ranges;
  for (const Unit& unit : units) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      if (!buffer.trainable()) continue;
      const int64_t share = (buffer.numel() + replicas.size() - 1) / replicas.size();
      const int64_t end = std::min(share * (replicas.rank() + 1), buffer.numel());
      int64_t begin = std::min(share * replicas.rank(), buffer.numel());
      if (mesh.coordinate("tp") != 0) begin = std::max(begin, buffer.whole_numel());
      if (begin < end) ranges.push_back({&buffer, begin, end - begin});
    }
  }
  return ranges;
}

at::Tensor owned_squares(const std::vector<OwnedRange>& ranges, at::Device device) {
  at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  for (const OwnedRange& range : ranges) {
    const at::Tensor gradients = range.buffer->gradients().narrow(0, range.offset, range.numel);
    squares.add_(at::linalg_vector_norm(gradients, 2, at::OptionalIntArrayRef{}, false, at::kDouble).square_());
  }
  return squares;
}

}  // namespace meshtrain
