#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Returns approximately the orthogonal matrix nearest to `matrix`, [rows, cols] of fp32 or fp64: with X / |X| = U S
/// V^T, U f(S) V^T, where f applies an odd polynomial of degree 5 `num_steps` times and so takes singular values to 0.7
/// .. 1.2; tiny ones stay below. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, with
/// their coefficients.
at::Tensor newton_schulz(const at::Tensor& matrix, int64_t num_steps);

}  // namespace meshtrain
