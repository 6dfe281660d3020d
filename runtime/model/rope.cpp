#include "runtime/model/rope.h"

#include <torch/csrc/autograd/custom_function.h>

#include "runtime/model/rope_scaling.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Out-of-place rotation by the angle, or by its negative.
at::Tensor turn(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  at::Tensor out = at::empty(x.sizes(), x.options());
  at::Tensor out_first = out.narrow(-1, 0, half), out_second = out.narrow(-1, half, half);
  at::mul_out(out_first, first, cos).addcmul_(second, sin, back ? 1 : -1);
  at::mul_out(out_second, second, cos).addcmul_(first, sin, back ? -1 : 1);
  return out;
}

struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return turn(x, cos, sin, /*back=*/false);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {turn(grads[0], saved[0], saved[1], /*back=*/true), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Rotary make_rotary(const ModelShape& shape, const at::Tensor& positions, at::ScalarType dtype, at::Device device) {
  const auto [frequencies, scale] = rope_frequencies(shape, dtype == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor angles =
      (positions.to(at::kCPU, frequencies.scalar_type()).unsqueeze(-1) * frequencies).unsqueeze(-2);
  return {(angles.cos() * scale).to(dtype).to(device), (angles.sin() * scale).to(dtype).to(device)};
}

Rotary Rotary::select(const at::Tensor& rows) const {
  const at::Tensor there = rows.to(cos.device());
  return {cos.index({there}), sin.index({there})};
}

at::Tensor rotate(const at::Tensor& x, const Rotary& rotary) {
  return RotateFunction::apply(x, rotary.cos, rotary.sin);
}

}  // namespace meshtrain
