#include "context_parallel/choice.h"

#include <algorithm>

#include "context_parallel/ulysses.h"
#include "mesh/base/error.h"
#include "mesh/base/size_text.h"

namespace meshtrain {

namespace {

using Kind = SequenceLayout::Kind;

/// Positions per rank from which a hop of a ring is hidden behind the blocks that compute during it
/// (docs/benchmarks.md, "Context parallel").
constexpr int64_t kLongPart = 256;

bool divides_in_pairs(const ContextShape& shape) {
  return shape.sequence_length % (2 * shape.ranks) == 0;
}

bool shares_heads(const ContextShape& shape) {
  return shape.num_heads % shape.ranks == 0 && shape.num_kv_heads % shape.ranks == 0;
}

/// Returns true when all layers have a window that is smaller than the sequence.
bool windowed(const ContextShape& shape) {
  return shape.window > 0 && shape.window < shape.sequence_length;
}

Kind suited_layout(const ContextShape& shape, ContextAlgorithm algorithm) {
  if (algorithm == ContextAlgorithm::Ulysses || windowed(shape) || !divides_in_pairs(shape)) return Kind::Contiguous;
  return Kind::ZigZag;
}

}  // namespace

ContextChoice choose_context(const ContextShape& shape, std::optional<ContextAlgorithm> algorithm,
                             std::optional<Kind> layout) {
  const auto choice = [&](ContextAlgorithm suited, std::string reason) {
    return ContextChoice{suited, layout.value_or(suited_layout(shape, suited)), std::move(reason)};
  };
  if (algorithm) return choice(*algorithm, "as requested");
  if (shape.ranks == 1) return choice(ContextAlgorithm::AllGather, "cp=1 exchanges nothing");

  const std::string part = std::to_string(shape.sequence_length / shape.ranks) + " tokens a rank";
  const bool even = windowed(shape) ||  // whether a causal ring has equal work on all ranks
                    (layout ? *layout == Kind::ZigZag : divides_in_pairs(shape));
  if (!even && !layout && shares_heads(shape)) {
    return choice(ContextAlgorithm::Ulysses,
                  "2 x cp does not divide the sequence, so a ring would be uneven; cp divides the KV heads");
  }
  if (!even) return choice(ContextAlgorithm::AllGather, "contiguous parts make a ring wait for its last rank");
  if (shape.sequence_length / shape.ranks >= kLongPart) {
    return choice(ContextAlgorithm::Ring, part + " are enough to hide the hops");
  }
  const auto total = [&](ContextAlgorithm which) {
    const AttentionBytes bytes = attention_bytes(shape, which, 1, 1, 4, 4);
    return bytes.forward + bytes.backward;
  };
  if (!layout && shares_heads(shape) && total(ContextAlgorithm::Ulysses) < total(ContextAlgorithm::AllGather)) {
    return choice(
        ContextAlgorithm::Ulysses,
        part +
            " are too few to hide the hops of a ring, and exchanging heads sends less than gathering keys and values");
  }
  return choice(ContextAlgorithm::AllGather,
                part + " are too few to hide the hops of a ring" +
                    (layout                ? ""
                     : shares_heads(shape) ? ", and exchanging heads sends no less than gathering keys and values"
                                           : ", and cp does not divide the KV heads"));
}

void check_heads(const ContextShape& shape, ContextAlgorithm algorithm) {
  if (algorithm != ContextAlgorithm::Ulysses || shape.num_heads % shape.ranks == 0) return;
  throw InputError("parallel.context.algorithm",
                   "ulysses divides the " + counted(shape.num_heads, "query head") +
                       " of a tensor-parallel rank over cp=" + std::to_string(shape.ranks) +
                       ", which does not divide them: use ring or all_gather, or a mesh with num_attention_heads a "
                       "multiple of tp x cp");
}

AttentionBytes attention_bytes(const ContextShape& shape, ContextAlgorithm algorithm, int64_t batch, int64_t head_dim,
                               int64_t element, int64_t wide) {
  const int64_t c = shape.ranks, positions = batch * (shape.sequence_length / c) * head_dim;
  const int64_t key_values = 2 * positions * shape.num_kv_heads;  // elements of the rank's own keys and values
  if (algorithm != ContextAlgorithm::Ulysses && windowed(shape)) {
    const int64_t part = shape.sequence_length / c, position = 2 * batch * shape.num_kv_heads * head_dim;
    AttentionBytes most{};
    for (int64_t rank = 0; rank < c; ++rank) {
      const int64_t sent = std::min(shape.window - 1, (c - 1 - rank) * part);
      const int64_t received = std::min(shape.window - 1, rank * part);  // their gradients return
      most.forward = std::max(most.forward, sent * position * element);
      most.backward = std::max(most.backward, position * (sent * element + received * wide));
    }
    return most;
  }
  if (algorithm != ContextAlgorithm::Ulysses) {
    return {(c - 1) * key_values * element, (c - 1) * key_values * (element + wide)};
  }
  const int64_t repeats = kv_head_repeats(shape.num_kv_heads, c);
  const int64_t queries = 2 * positions * shape.num_heads;  // elements of q and the output
  const int64_t back = repeats == 1 ? element : wide;
  return {(queries + key_values * repeats) * element * (c - 1) / c,
          (queries * element + key_values * repeats * back) * (c - 1) / c};
}

const char* name(ContextAlgorithm algorithm) {
  switch (algorithm) {
    case ContextAlgorithm::Ring:
      return "ring";
    case ContextAlgorithm::AllGather:
      return "all_gather";
    case ContextAlgorithm::Ulysses:
      return "ulysses";
  }
  return "";
}

const char* name(Kind kind) {
  return kind == Kind::ZigZag ? "zigzag" : "contiguous";
}

}  // namespace meshtrain
