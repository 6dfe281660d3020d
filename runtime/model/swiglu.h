#pragma once

#include "tensor_parallel/layer_input.h"

namespace meshtrain {

/// silu(gate) * up for gate_up [T, 2F], gate and up side by side -> [T, F]. Differentiable; only gate_up is kept.
/// Shazeer, "GLU variants improve transformer", 2020.
at::Tensor swiglu(const at::Tensor& gate_up);

/// swiglu(gate_up) for a layer that computes it again in its backward, from gate_up.
LayerInput recomputed_swiglu(const at::Tensor& gate_up);

}  // namespace meshtrain
