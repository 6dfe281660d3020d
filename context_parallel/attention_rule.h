#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshtrain {

/// The pairs of queries and keys of a block that count.
enum class Pairs {
  All,
  Causal,      ///< query t of n sees keys 0 to t of n: the lower triangle
  AntiCausal,  ///< query t of n sees keys t to n - 1: the upper triangle, reversed in both directions a causal block
};

/// The arithmetic of scores of queries with keys, and the keys that a query sees besides the causal rule. Sinks are
/// added to results over all keys (sinks.h); attention of a block ignores them.
struct AttentionRule {
  double scale;           ///< of the products of queries and keys
  int64_t window = 0;     ///< query i sees keys in (i - window, i]; 0: all keys before
  double softcap = 0;     ///< scores become softcap * tanh(score / softcap); 0: they stay
  at::Tensor sinks = {};  ///< [heads] scores without a value, one for all queries of a head; undefined: none
};

}  // namespace meshtrain
