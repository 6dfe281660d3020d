#include "runtime/model/rope.h"

#include <torch/csrc/autograd/custom_function.h>

#include "mesh/half_precision.h"
#include "runtime/model/rope_scaling.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x rotated by the angle, or by its negative, into `out`, which may be x.
at::Tensor turn(const at::Tensor& x, const at::Tensor& out, const at::Tensor& cos, const at::Tensor& sin, bool back) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  at::Tensor out_first = out.narrow(-1, 0, half), out_second = out.narrow(-1, half, half);
  const at::Tensor first_before = out.is_alias_of(x) ? first.clone() : first;
  at::mul_out(out_first, first, cos).addcmul_(second, sin, back ? 1 : -1);
  at::mul_out(out_second, second, cos).addcmul_(first_before, sin, back ? -1 : 1);
  return out;
}

struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    const bool is_kept = x.is_leaf() && x.requires_grad();
    // With a version counter of its own: other views of x's memory are as they were.
    return turn(x, is_kept ? at::empty(x.sizes(), x.options()) : x.variable_data(), cos, sin, /*back=*/false);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor grad = at::empty(grads[0].sizes(), grads[0].options());  // others may need grads[0]
    return {turn(grads[0], grad, saved[0], saved[1], /*back=*/true), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Rotary make_rotary(const ModelShape& shape, const at::Tensor& positions, at::ScalarType dtype, at::Device device) {
  const auto [frequencies, scale] = rope_frequencies(shape, accumulation_dtype(dtype));
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
