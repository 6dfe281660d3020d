#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "context_parallel/sequence_layout.h"
#include "context_parallel/wire_order.h"
#include "mesh/group.h"

namespace meshtrain {

/// Keys and values side by side, as ranks send them, [n, B, 2, K, D]: positions are the outermost dim, so that shards
/// of a collective are shards of the sequence. The heads are the model's, never repeated.
struct KeyValues {
  at::Tensor packed;

  static KeyValues empty(int64_t num_positions, const at::Tensor& like, at::ScalarType dtype);
  static KeyValues zeros(int64_t num_positions, const at::Tensor& like, at::ScalarType dtype);
  /// Copies k and v [B, K, s, D] of any strides.
  static KeyValues pack(const at::Tensor& k, const at::Tensor& v);
  at::Tensor keys() const { return of(0); }    ///< a view, [B, K, n, D]
  at::Tensor values() const { return of(1); }  ///< a view, [B, K, n, D]

 private:
  at::Tensor of(int64_t which) const { return packed.select(2, which).permute({1, 2, 0, 3}); }
};

/// A gather of the local keys and values to every rank. Construction issues one all-gather.
class KeyValueGather {
 public:
  /// k and v [B, K, s, D] in local order, any strides. Every rank of `group` must construct one.
  KeyValueGather(const at::Tensor& k, const at::Tensor& v, const SequenceLayout& layout, const Group& group);
  /// Waits, and returns keys and values of all positions, in order of position: [S, B, 2, K, D]. Call once.
  KeyValues wait();

 private:
  SequenceLayout layout_;
  KeyValues wire_;
  Work work_;
};

/// Gradients of keys and values at all positions, which a reduce-scatter returns to the ranks that hold the positions.
class KeyValueGradients {
 public:
  /// Starts with zeros. `k`: shape and device of the local keys; `dtype`: of the sums.
  KeyValueGradients(const at::Tensor& k, at::ScalarType dtype, const SequenceLayout& layout);
  /// Adds dk and dv [rows, K, n, D] to n positions from `position` on, in batch rows from `first_row` on.
  void add(int64_t first_row, int64_t position, const at::Tensor& dk, const at::Tensor& dv);
  /// Issues one reduce-scatter. Every rank of `group` must call it, once.
  void send(const Group& group);
  /// Waits, and returns the sums over ranks for the local positions, [s, B, 2, K, D] in local order.
  KeyValues wait();

 private:
  std::vector<WireChunk> order_;
  KeyValues wire_;
  KeyValues local_;
  Work work_;
};

}  // namespace meshtrain
