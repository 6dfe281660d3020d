#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "runtime/training/optimizer/options.h"

namespace meshtrain {

/// Returns approximately the orthogonal matrix nearest to `matrix`, [rows, cols] of fp32 or fp64: with X / |X| = U S
/// V^T, U f(S) V^T, where f applies `num_steps` odd polynomials of degree 5 and so takes singular values to 0.7 .. 1.2;
/// tiny ones stay below. Five steps of Simple stretch a difference in X by at most 3.4445^5 = 485. `coefficients`:
///   Simple        one polynomial: Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024
///   Quintic       five in turns: Cesista et al., "Squeezing 1-2% efficiency gains out of Muon", 2025
///   PolarExpress  eight, the last of which repeats: Amsel et al., "The Polar Express", 2025
at::Tensor newton_schulz(const at::Tensor& matrix, int64_t num_steps, Coefficients coefficients = Coefficients::Simple);

}  // namespace meshtrain
