#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "context_parallel/choice.h"
#include "context_parallel/sequence_layout.h"
#include "tests/support/dtype_tolerance.h"

namespace meshtrain::testing {

/// All algorithms of attention over the ranks.
inline constexpr ContextAlgorithm kAlgorithms[] = {ContextAlgorithm::Ring, ContextAlgorithm::AllGather,
                                                   ContextAlgorithm::Ulysses};
inline constexpr auto kZigZag = SequenceLayout::Kind::ZigZag;

/// Document starts for each sequence of a batch, as SequenceLayout::with_documents takes them.
using Documents = std::vector<std::vector<int64_t>>;

/// Document number of each position of one sequence, int64 [S].
at::Tensor document_ids(const std::vector<int64_t>& starts, int64_t sequence_length);

/// Computes attention by its definition: all scores of a complete sequence in fp64, a mask, a softmax. q [B, H, S, D],
/// k and v [B, K, S, D] -> [B, H, S, D]; differentiable. Empty `documents`: each sequence is one document. A rule's
/// window and softcap are a further mask and the function of all scores, its sinks a further column of scores.
at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Documents& documents,
                           const AttentionRule& rule);

/// Returns 1 where a query of one complete sequence sees a key, int64 [S, S].
at::Tensor visible(const std::vector<int64_t>& starts, int64_t sequence_length, int64_t window);

/// Query, key and value heads of a fused [B, s, H + 2K, D] tensor: strided views [B, heads, s, D].
struct Heads {
  at::Tensor q, k, v;
};
Heads split_heads(const at::Tensor& fused, int64_t num_heads, int64_t num_kv_heads);

}  // namespace meshtrain::testing
