#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tensor_parallel/adapter_terms.h"
#include "tensor_parallel/products/layer_input.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

// The arithmetic of the linear layers, differentiable once. Weights and biases are usually leaves. The gradient of one
// that has a gradient buffer is written or added there (leaf_gradient.h), in one product when buffers are adjacent.
// Backward reads the weights again: between forward and backward their storage may be refilled, or freed and filled.
// Frozen weights, and an input that needs no gradient, cost nothing in backward. If any weight needs x, backward keeps
// what its LayerInput names. Adapters need x for A, and keep drop(x) A^T for B.
//
// Backward overlaps its communication with the products that do not depend on it. A DeferringBackward
// (products/deferred.h) gets the gradients of weights to compute later: then x is gathered under sequence parallel.

/// Applies x W_i^T + b_i for each i, results side by side: [T, sum of F_i]. x: [T/tp, in] under sequence parallel,
/// otherwise [T, in]; weights: [F_i, in]; biases: [F_i], one for each weight or none. `adapters` add their terms; the
/// gradients of their A are this rank's part of a sum over tp. Every tp rank must call it, and its backward.
at::Tensor column_parallel_linear(const LayerInput& x, const std::vector<at::Tensor>& weights,
                                  const std::vector<at::Tensor>& biases, const TensorParallel& tp,
                                  const AdapterTerms& adapters = {});

/// Returns x W^T summed over tp, plus b: [T/tp, out] under sequence parallel, otherwise [T, out]. x: [T, in/tp];
/// weight: [out, in/tp]; bias: [out] or undefined. Every tp rank must call it, and its backward. Under sequence
/// parallel the gradient of the bias is this rank's part of a sum over tp. `adapters`: at most one, whose term is
/// reduced with the product; the gradient of its B is always this rank's part of a sum over tp.
at::Tensor row_parallel_linear(const LayerInput& x, const at::Tensor& weight, const at::Tensor& bias,
                               const TensorParallel& tp, const AdapterTerms& adapters = {});

}  // namespace meshtrain
