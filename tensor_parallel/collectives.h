#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/group.h"

namespace meshtrain {

// The conjugate pairs: what one does in forward, the other does in backward. Every rank of the group must call them,
// and their backward, in the same order. Over one rank they return their argument. Once differentiable.

/// x, the same on every rank, as input of what each rank computes for itself. Backward: all-reduce.
at::Tensor copy_to_group(const at::Tensor& x, const Group& group);

/// The sum of every rank's x; `x` stays as it is. Backward: identity.
at::Tensor reduce_from_group(const at::Tensor& x, const Group& group);

/// [T/n, ...] -> [T, ...], by group rank. Backward: reduce-scatter.
at::Tensor gather_rows(const at::Tensor& x, const Group& group);

/// [T, ...] -> this rank's [T/n, ...] of the sum of every rank's x. Backward: all-gather. T must divide by the size
/// of the group.
at::Tensor scatter_rows(const at::Tensor& x, const Group& group);

/// A collective under way and the tensor that it fills.
struct Pending {
  at::Tensor tensor;
  Work work;

  const at::Tensor& wait() const {
    work.wait();
    return tensor;
  }
};

/// The forwards of gather_rows and scatter_rows, begun and not differentiable. Over one rank: `x` itself.
Pending start_gather_rows(const at::Tensor& x, const Group& group);
Pending start_scatter_rows(const at::Tensor& x, const Group& group);

/// Throws std::logic_error, naming `operation`, in a backward that is itself recorded (create_graph): its collectives
/// would be missing from the second derivative.
void require_first_order(const char* operation);

}  // namespace meshtrain
