#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

namespace meshtrain {

/// The results of an activation's backward of rows that are multiplied by weights.
struct WeightedGradients {
  at::Tensor gate_up;  ///< [R, 2F], the gradient of gate_up
  at::Tensor hidden;   ///< [R, F], forward's result times the weights
  at::Tensor weights;  ///< [R], the gradient of the weights, in fp32 for halves
};

/// The activation between an expert's two products, and its derivative. Neither function may record for autograd. The
/// bits of a row must not depend on other rows. A caller with a fused operator can use that operator here.
struct GatedActivation {
  std::function<at::Tensor(const at::Tensor& gate_up)> forward;  ///< [R, 2F] -> [R, F]
  /// Takes the gradient of forward's result [R, F] and gate_up; returns the gradient of gate_up [R, 2F].
  std::function<at::Tensor(const at::Tensor& grad, const at::Tensor& gate_up)> backward;
  /// Takes the gradient of weight * forward's result, without the weights, gate_up and the weights [R]; computes what
  /// the two others and products by the weights do, in one pass over the rows, and may write `hidden` over the
  /// gradient. None, or a result of none: the others are called.
  std::function<std::optional<WeightedGradients>(const at::Tensor& grad, const at::Tensor& gate_up,
                                                 const at::Tensor& weights)>
      weighted_backward = {};
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
