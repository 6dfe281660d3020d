#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "context_parallel/attention.h"
#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// What attention over a context-parallel group looks like to one rank.
struct ContextShape {
  int64_t sequence_length;
  int64_t num_heads;     ///< query heads of one tensor-parallel rank
  int64_t num_kv_heads;  ///< of one tensor-parallel rank
  int64_t ranks;         ///< c
};

struct ContextChoice {
  ContextAlgorithm algorithm;
  SequenceLayout::Kind layout;
  std::string reason;  ///< half a sentence for the log: "parts of 4,096 tokens hide the hops"
};

/// The algorithm and layout of attention over `shape.ranks` ranks: those asked for, and for what is left open those
/// that suit the shape. A fixed table by shape, so every rank and every run comes to the same. It does not say whether
/// the shape can be cut that way: SequenceLayout and check_heads() do.
ContextChoice choose_context(const ContextShape& shape, std::optional<ContextAlgorithm> algorithm,
                             std::optional<SequenceLayout::Kind> layout);

/// Throws InputError when Ulysses cannot share the heads out.
void check_heads(const ContextShape& shape, ContextAlgorithm algorithm);

/// Bytes that a rank sends for one call of attention over a batch of `batch` sequences (formulas in
/// ../docs/architecture.md), heads of D features.
struct AttentionBytes {
  int64_t forward;
  int64_t backward;
};
/// `element`: bytes of an element of q, k and v; `wide`: of an element of gradients that are summed (4; 8 for fp64).
AttentionBytes attention_bytes(const ContextShape& shape, ContextAlgorithm algorithm, int64_t batch, int64_t head_dim,
                               int64_t element, int64_t wide);

/// "ring", "all_gather", "ulysses"; "contiguous", "zigzag": as in a recipe.
const char* name(ContextAlgorithm algorithm);
const char* name(SequenceLayout::Kind kind);

}  // namespace meshtrain
