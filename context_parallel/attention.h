#pragma once

#include <ATen/core/Tensor.h>

#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// How the ranks of a context-parallel group let their queries meet all keys. One pair of files each.
enum class ContextAlgorithm {
  Ring,       ///< keys and values go round the ranks while those that are there compute
  AllGather,  ///< keys and values of the whole sequence on every rank while a layer computes
  Ulysses,    ///< heads for sequence: each rank computes some heads of the whole sequence
};

/// Causal attention of the whole sequence, inside documents; each rank computes its own queries. Every rank of `group`
/// must call it, with the same shapes and documents. Differentiable once.
///
/// q [B, H, s, D], k and v [B, K, s, D], H a multiple of K, positions in the local order of `layout`; fp64, fp32, bf16
/// or fp16; any strides, best with contiguous D. Returns [B, H, s, D], in memory [B, s, H, D]. Keys and values travel
/// with their own K heads, their gradients in fp32 (fp64 for fp64).
///
/// On one rank without documents it is one kernel call each way and nothing else. On CUDA halves of divided sequences
/// are at most two calls for each rank whose keys are met (attention_plan.h), for up to 1,024 documents. Throws
/// std::invalid_argument when shapes, layout and group do not fit each other.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout,
                     const Group& group, ContextAlgorithm algorithm, double scale);

}  // namespace meshtrain
