#include "runtime/model/rope.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numbers>

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The same in fp32 and fp64, so that fp32 frequencies are those that transformers computes in fp32.
template <typename T>
at::Tensor inverse_frequencies(const ModelShape& shape) {
  const int64_t half = shape.head_dim / 2;
  std::vector<double> frequencies(half);
  for (int64_t i = 0; i < half; ++i) {
    const T exponent = static_cast<T>(2 * i) / static_cast<T>(shape.head_dim);
    T frequency = T{1} / std::pow(static_cast<T>(shape.rope_theta), exponent);
    if (const auto& scaling = shape.rope_scaling) {
      const double wavelength = 2 * std::numbers::pi / static_cast<double>(frequency);
      const double context = static_cast<double>(scaling->original_max_position_embeddings);
      const double low_wavelength = context / scaling->low_freq_factor;
      const double high_wavelength = context / scaling->high_freq_factor;
      if (wavelength > low_wavelength) {
        frequency = static_cast<T>(frequency / scaling->factor);
      } else if (wavelength >= high_wavelength) {
        const double smooth =
            (context / wavelength - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor);
        frequency = static_cast<T>((1 - smooth) * frequency / scaling->factor + smooth * frequency);
      }
    }
    frequencies[i] = frequency;
  }
  return at::tensor(frequencies, at::kDouble).to(c10::CppTypeToScalarType<T>::value);
}

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
  const bool wide = dtype == at::kDouble;
  const at::Tensor frequencies = wide ? inverse_frequencies<double>(shape) : inverse_frequencies<float>(shape);
  const at::Tensor angles =
      (positions.to(at::kCPU, frequencies.scalar_type()).unsqueeze(-1) * frequencies).unsqueeze(-2);
  return {angles.cos().to(dtype).to(device), angles.sin().to(dtype).to(device)};
}

Rotary Rotary::select(const at::Tensor& rows) const {
  const at::Tensor there = rows.to(cos.device());
  return {cos.index({there}), sin.index({there})};
}

at::Tensor rotate(const at::Tensor& x, const Rotary& rotary) {
  return RotateFunction::apply(x, rotary.cos, rotary.sin);
}

}  // namespace meshtrain
