#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "expert_parallel/expert_rows.h"
#include "expert_parallel/gated_activation.h"
#include "mesh/group.h"
#include "tensor_parallel/products/layer_input.h"

namespace meshtrain {

/// The weights of E experts, leaves or not, each of the dtype of x.
struct ExpertWeights {
  at::Tensor gate_up;       ///< [E, 2F, M]
  at::Tensor down;          ///< [E, M, F]
  at::Tensor gate_up_bias;  ///< [E, 2F]; undefined: none
  at::Tensor down_bias;     ///< [E, M]; undefined: none
};

/// Computes the experts of rows sorted by expert: weight * (down(activation(gate_up(x)))), for x [R, M], with `weights`
/// [R], fp32 or of the dtype of x -> [R, M]. Differentiable once with respect to x, the weights and all experts'
/// weights, whose gradients go into their buffers (leaf_gradient.h); an expert without rows writes zeros into an
/// unwritten one. Keeps x as its LayerInput says, the output of gate_up and, unless `recompute`, that of the
/// activation. The result is not kept: the gradient of a weight is that of the row before down, times the row there.
at::Tensor expert_products(const LayerInput& x, const at::Tensor& weights, const GroupStarts& starts,
                           const ExpertWeights& experts, const GatedActivation& activation, bool recompute);

/// Computes the mixture on one rank: for each token of x [T, M] the sum over its slots, in their order, of weight *
/// expert(x), with the slots' `weights` [T, k] -> [T, M]: the functions of expert_rows.h around expert_products(). It
/// keeps x and not the rows that it makes of x.
at::Tensor mixture(const at::Tensor& x, const at::Tensor& weights, const ExpertRows& rows, const ExpertWeights& experts,
                   const GatedActivation& activation, bool recompute);

/// Returns compute(), called while the weights of this rank's experts are there: Fsdp::run() of their unit.
using WithExperts = std::function<at::Tensor(const std::function<at::Tensor()>& compute)>;

/// Computes the mixture where experts are cut over the ranks of `ep`, each with other tokens: rows and their weights go
/// to the experts' ranks and the results return (dispatch.h), so that a token's slots are summed on its own rank in the
/// order of one rank. `experts`: the E/ep of this rank, used within `with_experts`. Every rank of `ep` must call it;
/// any of them may have no tokens.
at::Tensor mixture_over_ranks(const at::Tensor& x, const at::Tensor& weights, const ExpertRows& rows,
                              const ExpertWeights& experts, const GatedActivation& activation, bool recompute,
                              const Group& ep, const WithExperts& with_experts);

}  // namespace meshtrain
