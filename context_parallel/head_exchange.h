#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

// Exchanges between all heads of some positions and some heads of all positions. Rank i of c holds the i-th of c equal
// runs of each tensor's heads. Several tensors of one dtype travel in one all-to-all. Every rank of `group` must call
// them, with the same shapes.

/// Exchanges each [B, c h, s, D], positions in the local order of `layout`, for [B, h, S, D], positions ascending; D
/// contiguous.
std::vector<at::Tensor> sequence_to_heads(const std::vector<at::Tensor>& tensors, const SequenceLayout& layout,
                                          const Group& group);

/// Exchanges each [B, h, S, D] for [B, c h, s, D], in memory [B, s, c h, D].
std::vector<at::Tensor> heads_to_sequence(const std::vector<at::Tensor>& tensors, const SequenceLayout& layout,
                                          const Group& group);

}  // namespace meshtrain
