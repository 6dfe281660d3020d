#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "runtime/model/shape.h"

namespace meshtrain {

/// Keys and values of the positions of one sequence that a model has been through, so that a further token computes
/// itself alone: of each layer those of this tp rank's KV heads, keys turned by their positions already.
///
/// Memory: 2 layers K/tp D bytes of an element for each position of the capacity, of which those that are filled are
/// touched.
class KeyValueCache {
 public:
  /// Room for `capacity` positions, at least 1, in the dtype and on the device of `options`. `tp`: ranks that the KV
  /// heads are cut over.
  KeyValueCache(const ModelShape& shape, int64_t tp, int64_t capacity, const at::TensorOptions& options);

  /// Positions that are filled, in every layer: those that come next are counted from here.
  int64_t length() const { return layers_.back().length; }
  int64_t capacity() const { return layers_.back().keys.size(2); }
  int64_t num_bytes() const;
  /// As new.
  void clear();

  /// Causal attention of the next n positions of `layer` to themselves and to all that are filled, after which they are
  /// filled too. q [1, H, n, D], k and v [1, K, n, D], H a multiple of K -> [1, H, n, D], in memory [1, n, H, D]. Not
  /// differentiable. Throws std::logic_error beyond the capacity.
  at::Tensor attend(int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale);

 private:
  struct Layer {
    at::Tensor keys, values;  // [1, K, capacity, D]: a head's positions lie together
    int64_t length = 0;
  };
  std::vector<Layer> layers_;
};

}  // namespace meshtrain
