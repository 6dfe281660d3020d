#include "runtime/training/model/heads_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Settings : torch::CustomClassHolder {
  Settings(at::Tensor leaf, Group over, int64_t size, double added)
      : weight(std::move(leaf)), group(std::move(over)), features(size), eps(added) {}

  at::Tensor weight;  // the leaf itself, which a saved tensor with hooks would not be
  Group group;
  int64_t features;  // of all ranks
  double eps;
};

using SettingsPointer = c10::intrusive_ptr<Settings>;

/// Returns the mean of the rows of `local` [..., n] over the features of all ranks, [..., 1].
at::Tensor mean_over_ranks(const at::Tensor& local, const Settings& settings) {
  at::Tensor sums = local.sum(-1, /*keepdim=*/true);
  if (settings.group.size() > 1) settings.group.all_reduce(sums).wait();
  return sums.div_(static_cast<double>(settings.features));
}

struct HeadsNormFunction : torch::autograd::Function<HeadsNormFunction> {
  /// x [B, s, n], weight [n].
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const SettingsPointer& settings) {
    const at::Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
    const at::Tensor rstd = mean_over_ranks(wide.square(), *settings).add_(settings->eps).rsqrt_();
    ctx->save_for_backward({x, rstd});
    ctx->saved_data["settings"] = c10::IValue::make_capsule(settings);
    return (wide * rstd).mul_(weight.to(wide.scalar_type())).to(x.scalar_type());
  }

  // Computes dx = r (g - n mean(g n)), with n = x r and g = dy weight; dweight = sum of dy n.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto settings = c10::static_intrusive_pointer_cast<Settings>(ctx->saved_data["settings"].toCapsule());
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &rstd = saved[1], &weight = settings->weight;
    const at::ScalarType wide = rstd.scalar_type();
    const at::Tensor grad = grads[0].to(wide), normalised = x.to(wide) * rstd;
    at::Tensor grad_x, grad_weight;
    if (ctx->needs_input_grad(0)) {
      at::Tensor scaled = grad * weight.to(wide);
      const at::Tensor projection = mean_over_ranks(scaled * normalised, *settings);
      grad_x = scaled.sub_(normalised * projection).mul_(rstd).to(x.scalar_type());
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor sum = (grad * normalised).reshape({-1, x.size(-1)}).sum(0);
      const at::Tensor in_place = gradient_in_place(weight);
      if (in_place.defined()) {
        in_place.add_(sum);  // without rounding `sum` first
      } else {
        grad_weight = sum.to(weight.scalar_type());
      }
    }
    return {grad_x, grad_weight, at::Tensor()};
  }
};

}  // namespace

HeadsNorm::HeadsNorm(const std::string& name, int64_t heads, int64_t head_dim, double eps, const TensorParallel& tp,
                     const at::TensorOptions& options)
    : weight_(sharded_parameter(name, {heads * head_dim}, 0, tp.group, {Initializer::Kind::Ones}, options)),
      eps_(eps),
      group_(tp.group.with_purpose("tp.norm")) {}

at::Tensor HeadsNorm::forward(const at::Tensor& x) const {
  const at::Tensor rows = x.reshape({x.size(0), x.size(1), -1});
  return HeadsNormFunction::apply(rows, weight_.tensor,
                                  c10::make_intrusive<Settings>(weight_.tensor, group_, weight_.global_shape[0], eps_))
      .view(x.sizes());
}

}  // namespace meshtrain
