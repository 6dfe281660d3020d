#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshtrain {

/// The function between an expert's two products, and its derivative. Neither may record for autograd; both must give
/// the same bits for a row whatever the other rows are. A caller with a fused operator makes one of that.
struct GatedActivation {
  std::function<at::Tensor(const at::Tensor& gate_up)> forward;  ///< [R, 2F] -> [R, F]
  /// The gradient of forward's result [R, F], and gate_up -> the gradient of gate_up [R, 2F].
  std::function<at::Tensor(const at::Tensor& grad, const at::Tensor& gate_up)> backward;
};

/// The columns of gate and up among 2F.
enum class GateLayout {
  SideBySide,   ///< F columns of gate, then F of up
  Interleaved,  ///< gate in columns 0, 2, ..., up in columns 1, 3, ... (gpt-oss)
};

/// Returns silu(gate) * up, of LibTorch's operators, for columns side by side.
GatedActivation silu_activation();

/// Returns (up' + 1) gate' sigmoid(alpha gate') with gate' = min(gate, limit) and up' = up between -limit and limit:
/// gpt-oss, whose alpha is 1.702 and limit 7.
GatedActivation clamped_activation(double alpha, double limit, GateLayout layout);

}  // namespace meshtrain
