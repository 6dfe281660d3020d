#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// silu(gate) * up for gate_up [T, 2F], gate and up side by side -> [T, F]. Differentiable; only gate_up is kept.
/// Shazeer, "GLU variants improve transformer", 2020.
at::Tensor swiglu(const at::Tensor& gate_up);

}  // namespace meshtrain
