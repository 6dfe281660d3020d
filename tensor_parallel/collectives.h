#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/group.h"

namespace meshtrain {

// Conjugate pairs: the forward of one function is the backward of the other. Every rank of the group must call them,
// and their backward, in the same order. For one rank they return their argument. Differentiable once.

/// Returns x, the same on every rank, as the input of each rank's own computation. Backward: all-reduce.
at::Tensor copy_to_group(const at::Tensor& x, const Group& group);

/// Returns the sum of every rank's x; does not change `x`. Backward: identity.
at::Tensor reduce_from_group(const at::Tensor& x, const Group& group);

/// Gathers [T/n, ...] -> [T, ...], in the order of group ranks. Backward: reduce-scatter.
at::Tensor gather_rows(const at::Tensor& x, const Group& group);

/// Sums every rank's x [T, ...] and returns this rank's [T/n, ...] of the sum. Backward: all-gather. T must be a
/// multiple of the group's size.
at::Tensor scatter_rows(const at::Tensor& x, const Group& group);

/// A collective in progress and the tensor that it fills.
struct Pending {
  at::Tensor tensor;
  Work work;

  const at::Tensor& wait() const {
    work.wait();
    return tensor;
  }
};

/// Start the forwards of gather_rows and scatter_rows. Not differentiable. For one rank they return `x`.
Pending start_gather_rows(const at::Tensor& x, const Group& group);
Pending start_scatter_rows(const at::Tensor& x, const Group& group);

/// Throws std::logic_error, naming `operation`, in a backward that is recorded itself (create_graph): the second
/// derivative would lack its collectives.
void require_first_order(const char* operation);

}  // namespace meshtrain
