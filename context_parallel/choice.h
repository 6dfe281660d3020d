#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "context_parallel/attention.h"
#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// The shape of attention over a context-parallel group, for one rank.
struct ContextShape {
  int64_t sequence_length;
  int64_t num_heads;     ///< query heads of one tensor-parallel rank
  int64_t num_kv_heads;  ///< KV heads of one tensor-parallel rank
  int64_t ranks;         ///< c, the size of the group
  int64_t window = 0;    ///< largest window of the layers (AttentionRule); 0: a layer has none
};

struct ContextChoice {
  ContextAlgorithm algorithm = ContextAlgorithm::Ring;
  SequenceLayout::Kind layout = SequenceLayout::Kind::Contiguous;
  std::string reason = {};  ///< reason as half a sentence for the log: "parts of 4,096 tokens hide the hops"
};

/// Returns the algorithm and layout of attention over `shape.ranks` ranks: the requested ones, or those that suit the
/// shape. A fixed table by shape decides, so every rank and every run gets the same. With a window contiguous parts
/// have equal work, and the fewest keys cross between ranks. With packed documents only Ulysses has equal work on every
/// rank. SequenceLayout and check_heads() check whether the shape can be cut that way.
ContextChoice choose_context(const ContextShape& shape, std::optional<ContextAlgorithm> algorithm,
                             std::optional<SequenceLayout::Kind> layout);

/// Throws InputError when Ulysses cannot distribute the heads evenly.
void check_heads(const ContextShape& shape, ContextAlgorithm algorithm);

/// The bytes that a rank sends for one call of attention over b sequences of S tokens. c ranks; H query and K KV heads
/// of a tp rank, of D features; e bytes an element, w bytes of a summed one (4; 8 for fp64); KV = 2 b S K D e:
///   Ring, AllGather  (c - 1) / c KV, in the backward times (1 + w / e). With a window W, in contiguous parts, at most
///                    min((W - 1) / S, (c - 1) / c) KV, in the backward times (1 + w / e)
///   Ulysses          (c - 1) / c b S / c D (2 H + 2 R K) e, where each KV head is repeated R = c / gcd(c, K) times; in
///                    the backward (c - 1) / c b S / c D (2 H e + 2 R K w'), with w' = e when R is 1, else w
struct AttentionBytes {
  int64_t forward;
  int64_t backward;
};
/// Returns these bytes. `batch`: b; `head_dim`: D; `element`: e, of q, k and v; `wide`: w, of summed gradients.
AttentionBytes attention_bytes(const ContextShape& shape, ContextAlgorithm algorithm, int64_t batch, int64_t head_dim,
                               int64_t element, int64_t wide);

/// Return the words of a recipe: "ring", "all_gather", "ulysses"; "contiguous", "zigzag".
const char* name(ContextAlgorithm algorithm);
const char* name(SequenceLayout::Kind kind);

}  // namespace meshtrain
