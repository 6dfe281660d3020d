#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tensor_parallel/layer_input.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

// The arithmetic of the linear layers, differentiable once. Weights and biases are leaves as a rule; the gradient of
// one that has a gradient buffer is written or added there (leaf_gradient.h), in one product where buffers are
// adjacent. Weights are read anew in backward: their storage may be refilled, or freed and filled, between forward and
// backward. Frozen ones and an input that needs no gradient cost nothing in backward. Of x is kept what its LayerInput
// says, if any weight needs it.
//
// Communication of the backward runs beside the products that do not depend on it.

/// x [T/tp, in] under sequence parallel, else [T, in]; weights [F_i, in]; biases [F_i], one for each weight or none.
/// -> [T, sum of F_i]: x W_i^T + b_i side by side. Every tp rank must call it, and its backward.
at::Tensor column_parallel_linear(const LayerInput& x, const std::vector<at::Tensor>& weights,
                                  const std::vector<at::Tensor>& biases, const TensorParallel& tp);

/// x [T, in/tp], weight [out, in/tp], bias [out] or undefined -> x W^T summed over tp, plus b:
/// [T/tp, out] under sequence parallel, else [T, out]. Every tp rank must call it, and its backward. Under sequence
/// parallel the gradient of the bias is this rank's part of a sum over tp.
at::Tensor row_parallel_linear(const LayerInput& x, const at::Tensor& weight, const at::Tensor& bias,
                               const TensorParallel& tp);

}  // namespace meshtrain
