#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshtrain {

/// The activation between an expert's two products, and its derivative. Neither function may record for autograd. The
/// bits of a row must not depend on other rows. A caller with a fused operator can use that operator here.
struct GatedActivation {
  std::function<at::Tensor(const at::Tensor& gate_up)> forward;  ///< [R, 2F] -> [R, F]
  /// Takes the gradient of forward's result [R, F] and gate_up; returns the gradient of gate_up [R, 2F].
  std::function<at::Tensor(const at::Tensor& grad, const at::Tensor& gate_up)> backward;
};

/// The order of the columns of gate and up among 2F.
enum class GateLayout {
  SideBySide,   ///< F columns of gate, then F of up
  Interleaved,  ///< gate in columns 0, 2, ..., up in columns 1, 3, ... (gpt-oss)
};

/// Returns silu(gate) * up, computed by LibTorch's operators, for GateLayout::SideBySide.
GatedActivation silu_activation();

/// Returns (up' + 1) gate' sigmoid(alpha gate'), where gate' = min(gate, limit) and up' is up clamped to [-limit,
/// limit]. In gpt-oss alpha is 1.702 and limit 7.
GatedActivation clamped_activation(double alpha, double limit, GateLayout layout);

}  // namespace meshtrain
