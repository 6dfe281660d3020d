#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "context_parallel/attention_rule.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// The keys and values of the positions of one sequence that a model has processed, so that only further tokens are
/// computed: of each layer those of this tp rank's KV heads, the keys already rotated.
///
/// Memory: 2 * layers * K/tp * D * bytes of an element for each position of the capacity; only filled positions are
/// touched.
class KeyValueCache {
 public:
  /// Allocates `capacity` positions, at least 1, in the dtype and on the device of `options`. `tp`: the number of ranks
  /// over which the KV heads are sharded.
  KeyValueCache(const ModelShape& shape, int64_t tp, int64_t capacity, const at::TensorOptions& options);

  /// Returns the number of filled positions, the same in every layer: the index of the next position.
  int64_t length() const { return layers_.back().length; }
  int64_t capacity() const { return layers_.back().keys.size(2); }

  /// Appends the next n positions of `layer` and computes their causal attention to themselves and to all positions
  /// before, by `rule` (softcap, window, sinks). q [1, H, n, D], k and v [1, K, n, D], H a multiple of K -> [1, H, n,
  /// D], in memory [1, n, H, D]. Not differentiable. Throws std::logic_error beyond the capacity.
  at::Tensor attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const AttentionRule& rule);

 private:
  struct Layer {
    at::Tensor keys, values;  // [1, K, capacity, D]: a head's positions lie together
    int64_t length = 0;
  };
  std::vector<Layer> layers_;
};

}  // namespace meshtrain
