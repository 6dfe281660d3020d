#include "expert_parallel/gated_activation.h"

#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/row_chunks.h"

namespace meshtrain {
namespace {

/// Returns the columns of gate and of up, views of gate_up.
std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& gate_up, GateLayout layout) {
  const int64_t features = gate_up.size(1) / 2;
  if (layout == GateLayout::SideBySide) {
    return {gate_up.narrow(1, 0, features), gate_up.narrow(1, features, features)};
  }
  const at::Tensor pairs = gate_up.view({gate_up.size(0), features, 2});
  return {pairs.select(2, 0), pairs.select(2, 1)};
}

at::Tensor silu_backward_of(const at::Tensor& grad, const at::Tensor& gate_up) {
  const auto [gate, up] = halves(gate_up, GateLayout::SideBySide);
  at::Tensor result = at::empty_like(gate_up);
  auto [to_gate, to_up] = halves(result, GateLayout::SideBySide);
  at::mul_out(to_up, grad, at::silu(gate));
  at::silu_backward_out(to_gate, grad * up, gate);
  return result;
}

/// The rows of gate' and up', in fp32 for halves.
struct Clamped {
  at::Tensor gate, up;
};

class ClampedActivation {
 public:
  ClampedActivation(double alpha, double limit, GateLayout layout) : alpha_(alpha), limit_(limit), layout_(layout) {}

  at::Tensor forward(const at::Tensor& gate_up) const {
    at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
    for_pieces(gate_up, [&](int64_t first, int64_t count) {
      const auto [gate, up] = clamped(gate_up.narrow(0, first, count));
      out.narrow(0, first, count).copy_((gate * alpha_).sigmoid_().mul_(gate).mul_(up + 1));
    });
    return out;
  }

  at::Tensor backward(const at::Tensor& grad, const at::Tensor& gate_up) const {
    at::Tensor result = at::empty_like(gate_up);
    for_pieces(gate_up, [&](int64_t first, int64_t count) {
      const at::Tensor from = gate_up.narrow(0, first, count);
      const auto [gate, up] = clamped(from);
      const auto [gate_before, up_before] = halves(from, layout_);
      const auto [to_gate, to_up] = halves(result.narrow(0, first, count), layout_);
      const at::Tensor wide = grad.narrow(0, first, count).to(gate.scalar_type());
      const at::Tensor sigmoid = (gate * alpha_).sigmoid_();
      const at::Tensor up_passes = up_before.le(limit_).mul_(up_before.ge(-limit_)).to(wide.scalar_type());
      to_up.copy_((wide * gate).mul_(sigmoid).mul_(up_passes));
      // d (g s(a g)) / dg = s (1 + a g (1 - s))
      const at::Tensor slope = (-sigmoid).add_(1).mul_(gate).mul_(alpha_).add_(1).mul_(sigmoid);
      to_gate.copy_(slope.mul_(wide).mul_(up + 1).mul_(gate_before.le(limit_).to(wide.scalar_type())));
    });
    return result;
  }

 private:
  Clamped clamped(const at::Tensor& rows) const {
    const auto [gate, up] = halves(rows, layout_);
    const at::ScalarType wide = c10::isReducedFloatingType(rows.scalar_type()) ? at::kFloat : rows.scalar_type();
    return {gate.to(wide).clamp_max(limit_), up.to(wide).clamp(-limit_, limit_)};
  }

  template <class Piece>
  static void for_pieces(const at::Tensor& gate_up, const Piece& piece) {
    for_host_row_chunks(gate_up, gate_up.size(0), gate_up.size(1) * static_cast<int64_t>(sizeof(double)), piece);
  }

  double alpha_, limit_;
  GateLayout layout_;
};

}  // namespace

GatedActivation silu_activation() {
  return {[](const at::Tensor& gate_up) {
            const auto [gate, up] = halves(gate_up, GateLayout::SideBySide);
            return at::silu(gate).mul_(up);
          },
          silu_backward_of};
}

GatedActivation clamped_activation(double alpha, double limit, GateLayout layout) {
  const ClampedActivation activation(alpha, limit, layout);
  return {
      [activation](const at::Tensor& gate_up) { return activation.forward(gate_up); },
      [activation](const at::Tensor& grad, const at::Tensor& gate_up) { return activation.backward(grad, gate_up); }};
}

}  // namespace meshtrain
