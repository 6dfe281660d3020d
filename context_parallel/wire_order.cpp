#include "context_parallel/wire_order.h"

#include <algorithm>

#include "mesh/device/aten.h"

namespace meshtrain {

std::vector<WireChunk> wire_order(const SequenceLayout& layout) {
  std::vector<WireChunk> chunks;
  int64_t offset = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    for (const SequenceLayout::Chunk& chunk : layout.chunks(rank)) {
      chunks.push_back({chunk, offset});
      offset += chunk.size;
    }
  }
  std::sort(chunks.begin(), chunks.end(),
            [](const WireChunk& a, const WireChunk& b) { return a.chunk.start < b.chunk.start; });
  return chunks;
}

at::Tensor by_position(const at::Tensor& wire, const SequenceLayout& layout) {
  if (layout.ranks() == 1 || layout.kind() == SequenceLayout::Kind::Contiguous) return wire;
  std::vector<at::Tensor> parts;
  for (const WireChunk& wired : wire_order(layout)) parts.push_back(wire.narrow(0, wired.offset, wired.chunk.size));
  return at::cat(parts, 0);
}

}  // namespace meshtrain
