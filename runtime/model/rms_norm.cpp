#include "runtime/model/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "mesh/half_precision.h"
#include "tensor_parallel/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// 1/sqrt(mean(x^2) + eps) of each row of `wide`, [..., 1].
at::Tensor inverse_lengths(const at::Tensor& wide, double eps) {
  return wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
}

at::Tensor scaled(const at::Tensor& wide, const at::Tensor& rstd, const at::Tensor& weight) {
  return (wide * rstd).to(weight.scalar_type()).mul_(weight);
}

// dx = r (g - n mean(g n)), with n = x r, r = 1/sqrt(mean(x^2) + eps), g = dy weight; dweight = sum of dy n.
struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
    const at::Tensor rstd = inverse_lengths(wide, eps);
    ctx->save_for_backward({x, weight, rstd});
    return scaled(wide, rstd, weight);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const at::ScalarType wide = rstd.scalar_type();
    const at::Tensor grad = grads[0].to(wide);
    const at::Tensor normalised = x.to(wide) * rstd;

    at::Tensor grad_weight;
    if (ctx->needs_input_grad(1)) {
      const at::Tensor sum = (grad * normalised).reshape({-1, x.size(-1)}).sum(0);
      const at::Tensor in_place = gradient_in_place(weight);
      if (in_place.defined()) {
        at::Tensor(in_place).add_(sum);  // not rounded on its way
      } else {
        grad_weight = sum.to(weight.scalar_type());
      }
    }
    at::Tensor grad_x;
    if (ctx->needs_input_grad(0)) {
      at::Tensor scaled = grad * weight.to(wide);
      const at::Tensor projection = (scaled * normalised).mean(-1, /*keepdim=*/true);
      grad_x = scaled.sub_(normalised.mul_(projection)).mul_(rstd).to(x.scalar_type());
    }
    return {grad_x, grad_weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}

LayerInput RmsNorm::recomputed(const at::Tensor& x) const {
  return {forward(x), {x, weight_.tensor}, [eps = eps_](const std::vector<at::Tensor>& kept) {
            const at::NoGradGuard no_grad;
            const at::Tensor wide = kept[0].to(accumulation_dtype(kept[0].scalar_type()));
            return scaled(wide, inverse_lengths(wide, eps), kept[1]);
          }};
}

RmsNorm::RmsNorm(std::string name, int64_t size, double eps, std::string partial_over, const at::TensorOptions& options)
    : weight_(whole_parameter(std::move(name), {size}, {Initializer::Kind::Ones}, options)), eps_(eps) {
  weight_.partial_over = std::move(partial_over);
}

}  // namespace meshtrain
