#pragma once

#include "expert_parallel/gated_activation.h"
#include "runtime/training/model/pieces.h"
#include "tensor_parallel/products/layer_input.h"

namespace meshtrain {

/// Computes activation(gate) * up for gate_up [T, 2F], gate and up side by side -> [T, F]. Differentiable; keeps only
/// gate_up. Shazeer, "GLU variants improve transformer", 2020: SwiGLU and, with the tanh form of GELU, GeGLU.
at::Tensor glu(const at::Tensor& gate_up, Activation activation);

/// Returns glu(gate_up, activation) as the input of a layer that computes it again in its backward, from gate_up.
LayerInput recomputed_glu(const at::Tensor& gate_up, Activation activation);

/// Returns glu(gate_up, activation) and, from the gradient of that, the gradient of gate_up. Neither records for
/// autograd.
at::Tensor glu_value(const at::Tensor& gate_up, Activation activation);
at::Tensor glu_gradient(const at::Tensor& grad, const at::Tensor& gate_up, Activation activation);

/// Returns glu as the activation of experts.
GatedActivation glu_of_experts(Activation activation);

}  // namespace meshtrain
