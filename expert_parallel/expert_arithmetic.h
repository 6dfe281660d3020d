#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "expert_parallel/gated_activation.h"
#include "tensor_parallel/products/grouped_product.h"

namespace meshtrain {

/// The weights of E experts, in the dtype of x. They need not be leaves of autograd.
struct ExpertWeights {
  at::Tensor gate_up;       ///< [E, 2F, M]
  at::Tensor down;          ///< [E, M, F]
  at::Tensor gate_up_bias;  ///< [E, 2F]; undefined: none
  at::Tensor down_bias;     ///< [E, M]; undefined: none

  /// Returns the weights of `count` experts from `first` on: views.
  ExpertWeights part(int64_t first, int64_t count) const;
};

/// A layer of experts as its passes use it.
struct ExpertLayer {
  ExpertWeights weights;
  GatedActivation activation;
  bool recompute;             ///< computes the output of the activation again in the backward
  int64_t rows_of_block = 0;  ///< > 0: both passes compute blocks of so many rows; nothing is kept between them
};

/// The tensors that a forward keeps for its backward. Undefined ones are computed again.
struct ExpertActivations {
  at::Tensor gate_up;  ///< [R, 2F], the output of gate_up
  at::Tensor hidden;   ///< [R, F], the output of the activation
};

// Neither pass is differentiable. Rows are sorted by expert; `starts` has the rows of each expert. Beside their results
// and `kept`, the passes over blocks need memory for the activations of one block.

/// Returns weight * down(activation(gate_up(x))) for rows x [R, M] with their `weights` [R]. Sets `kept`.
at::Tensor expert_forward(const ExpertLayer& layer, const at::Tensor& x, const at::Tensor& weights,
                          const GroupStarts& starts, ExpertActivations& kept);

/// The tensors that the gradients of the experts' weights are products of.
struct ExpertOperands {
  at::Tensor dy;                  ///< [R, M], the gradient of the weighted rows
  at::Tensor weighted;            ///< [R, F], outputs of the activation times the weights of their rows
  at::Tensor weights;             ///< [R]
  at::Tensor d_gate_up;           ///< [R, 2F]
  std::function<at::Tensor()> x;  ///< returns the rows [R, M]
  GroupStarts starts;
};

/// The results of a backward.
struct ExpertGradients {
  at::Tensor x;                            ///< [R, M]; undefined: not needed
  at::Tensor weights;                      ///< [R]; undefined: not needed
  std::optional<ExpertOperands> operands;  ///< none when `use` has got those of all blocks
};

/// The gradients that a backward computes.
struct ExpertNeeds {
  bool x = true, weights = true, down = true;
};

/// Computes the gradients of expert_forward() from that of its result, dy [R, M]. Calls `use` for each block of rows,
/// in their order; without blocks it returns the operands instead.
ExpertGradients expert_backward(const ExpertLayer& layer, const std::function<at::Tensor()>& x,
                                const at::Tensor& weights, const GroupStarts& starts, const ExpertActivations& kept,
                                const at::Tensor& dy, const ExpertNeeds& needs,
                                const std::function<void(const ExpertOperands&)>& use);

}  // namespace meshtrain
