#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// Where a chunk lies in what the ranks of a layout hold, end to end.
struct WirePlace {
  SequenceLayout::Chunk chunk;
  int64_t offset;
};
/// All chunks of the sequence, ascending by position.
std::vector<WirePlace> wire_order(const SequenceLayout& layout);

/// [S, ...] as the ranks hold it, end to end -> [S, ...] by position: itself where that is the same.
at::Tensor by_position(const at::Tensor& wire, const SequenceLayout& layout);

}  // namespace meshtrain
