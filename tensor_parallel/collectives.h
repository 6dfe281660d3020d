#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/group.h"

namespace meshtrain {

/// A collective in progress and the tensor that it fills.
struct PendingTensor {
  at::Tensor tensor;
  Work work;

  const at::Tensor& wait() const {
    work.wait();
    return tensor;
  }
};

// Every rank of the group must call these functions in the same order. Not differentiable. On one rank they return `x`.

/// Starts to gather x [T/n, ...] -> [T, ...], in the order of group ranks.
PendingTensor start_gather_rows(const at::Tensor& x, const Group& group);

/// Starts to sum x [T, ...] over all ranks; this rank gets its [T/n, ...] of the sum. T must be a multiple of the
/// group's size.
PendingTensor start_scatter_rows(const at::Tensor& x, const Group& group);

}  // namespace meshtrain
