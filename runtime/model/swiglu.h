#pragma once

#include "tensor_parallel/layer_input.h"

namespace meshtrain {

/// Computes silu(gate) * up for gate_up [T, 2F], gate and up side by side -> [T, F]. Differentiable; keeps only
/// gate_up. Shazeer, "GLU variants improve transformer", 2020.
at::Tensor swiglu(const at::Tensor& gate_up);

/// Returns swiglu(gate_up) as the input of a layer that computes it again in its backward, from gate_up.
LayerInput recomputed_swiglu(const at::Tensor& gate_up);

}  // namespace meshtrain
