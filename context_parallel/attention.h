#pragma once

#include <ATen/core/Tensor.h>

#include "context_parallel/attention_rule.h"
#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// The way in which the queries of the ranks in a context-parallel group meet all keys. Each has its own pair of files.
enum class ContextAlgorithm {
  Ring,       ///< keys and values travel round the ranks, overlapped with the computation of those already received
  AllGather,  ///< each rank gathers all keys and values of the sequence while a layer computes
  Ulysses,    ///< exchanges heads for sequence: each rank computes some heads of the complete sequence
};

/// Computes causal attention of the complete sequence by a rule, inside documents; each rank computes its own queries.
/// Every rank of `group` must call it, with the same shapes, documents and rule. Differentiable once.
///
/// q [B, H, s, D], k and v [B, K, s, D], H a multiple of K, positions in the local order of `layout`; fp64, fp32, bf16
/// or fp16; any strides, fastest with contiguous D. Returns [B, H, s, D], in memory [B, s, H, D]. Keys and values
/// travel with their own K heads, their gradients in fp32 (fp64 for fp64).
///
/// On one rank without documents it is one kernel call each in forward and backward. On CUDA, halves of sequences with
/// documents need at most two calls for each rank whose keys are used (kernel_calls.h), for up to 1,024 documents.
///
/// A window (in positions of a document) costs what it leaves: scores outside are never computed, and Ring and
/// AllGather send each rank only the keys that its queries see (window_attention.h). Halves on CUDA
/// need one call more for the keys of another rank; elsewhere equal tiles of the window are one call (blocks.h). A
/// softcap is computed by products of bounded tiles in fp32 (fp64 for fp64), on every device (capped_attention.h).
///
/// Sinks [H] belong to the heads of q. Their gradient is that of this rank's queries (Ulysses: of its heads, with zeros
/// for the others), so that the sum over `group` is complete (sinks.h).
///
/// Throws std::invalid_argument when shapes, layout and group do not match, and for a negative window or softcap.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout,
                     const Group& group, ContextAlgorithm algorithm, const AttentionRule& rule);

}  // namespace meshtrain
