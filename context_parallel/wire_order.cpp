#include "context_parallel/wire_order.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace meshtrain {

std::vector<WirePlace> wire_order(const SequenceLayout& layout) {
  std::vector<WirePlace> places;
  int64_t offset = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    for (const SequenceLayout::Chunk& chunk : layout.chunks(rank)) {
      places.push_back({chunk, offset});
      offset += chunk.size;
    }
  }
  std::sort(places.begin(), places.end(),
            [](const WirePlace& a, const WirePlace& b) { return a.chunk.start < b.chunk.start; });
  return places;
}

at::Tensor by_position(const at::Tensor& wire, const SequenceLayout& layout) {
  if (layout.ranks() == 1 || layout.kind() == SequenceLayout::Kind::Contiguous) return wire;
  std::vector<at::Tensor> parts;
  for (const WirePlace& place : wire_order(layout)) parts.push_back(wire.narrow(0, place.offset, place.chunk.size));
  return at::cat(parts, 0);
}

}  // namespace meshtrain
