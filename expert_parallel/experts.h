#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "expert_parallel/dispatch.h"
#include "expert_parallel/expert_arithmetic.h"
#include "expert_parallel/expert_rows.h"
#include "tensor_parallel/products/layer_input.h"

namespace meshtrain {

/// Computes weight * down(activation(gate_up(x))) with the experts of rows that are sorted by expert. x: [R, M];
/// `weights`: [R], fp32 or of the dtype of x. Returns [R, M]. Differentiable once with respect to x, `weights` and the
/// weights of all experts, whose gradients go into their buffers (leaf_gradient.h). An expert without rows writes zeros
/// into a buffer that is still unwritten. The backward keeps x as its LayerInput says, the output of gate_up and,
/// unless `recompute`, the output of the activation. It does not need the result: the gradient of a row's weight is the
/// dot product of the row before down and the gradient there.
at::Tensor expert_products(const LayerInput& x, const at::Tensor& weights, const GroupStarts& starts,
                           const ExpertWeights& experts, const GatedActivation& activation, bool recompute);

/// Computes the mixture on one rank: for each token of x [T, M] the sum over its slots, in their order, of weight *
/// expert(x), with the slots' `weights` [T, k]. Returns [T, M]. It calls the functions of expert_rows.h around
/// expert_products(). It keeps x, but not the rows that it makes of x.
at::Tensor mixture(const at::Tensor& x, const at::Tensor& weights, const ExpertRows& rows, const ExpertWeights& experts,
                   const GatedActivation& activation, bool recompute);

/// Calls compute() while the weights of this rank's experts are available, and returns its result: Fsdp::run() of their
/// unit.
using WithExperts = std::function<at::Tensor(const std::function<at::Tensor()>& compute)>;

/// Computes the mixture where experts are cut over the ranks of ep and each rank has other tokens. Rows and their
/// weights are sent to the experts' ranks and the results return (dispatch.h). A token's slots are therefore summed on
/// its own rank, in the order of one rank. Rows of one piece travel while those of another are computed, in both
/// passes. `experts`: the E/ep experts of this rank, used within `with_experts`. Every rank of ep must call it and its
/// backward, even a rank without tokens. Differentiable once with respect to x [T, M], `weights` [T, k] and the
/// experts' weights.
///
/// A rank that receives more than kMostKeptRows times the rows that a rank sends on average, or than it sends itself,
/// computes them in blocks of so many rows and keeps of them only the rows: its activations do not grow with ep.
at::Tensor mixture_over_ranks(const at::Tensor& x, const at::Tensor& weights, const Dispatch& dispatch,
                              const ExpertWeights& experts, const GatedActivation& activation, bool recompute,
                              const WithExperts& with_experts);

inline constexpr int64_t kMostKeptRows = 2;

}  // namespace meshtrain
