#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// A chunk, and its offset in the concatenation of all ranks' parts.
struct WireChunk {
  SequenceLayout::Chunk chunk;
  int64_t offset;
};
/// Returns all chunks of the sequence, ascending by position.
std::vector<WireChunk> wire_order(const SequenceLayout& layout);

/// Sorts `wire` [S, ...], the concatenation of the ranks' parts, by position; returns `wire` when it is sorted already.
at::Tensor by_position(const at::Tensor& wire, const SequenceLayout& layout);

}  // namespace meshtrain
