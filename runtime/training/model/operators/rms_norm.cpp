#include "runtime/training/model/operators/rms_norm.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "mesh/device/half_precision.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/operator.h"
#include "runtime/training/model/operators/rms_norm_host.h"
#include "tensor_parallel/products/leaf_gradient.h"

namespace meshtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using NormResult = std::tuple<at::Tensor, at::Tensor>;                 // out, rstd [..., 1]
using SumNormResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // sum, out, rstd
using NormGradients = std::tuple<at::Tensor, at::Tensor>;              // of x, of the weight

/// Returns 1/sqrt(mean(x^2) + eps) of each row of `wide`, [..., 1].
at::Tensor inverse_lengths(const at::Tensor& wide, double eps) {
  return wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
}

/// Returns the factors of normalised values in `dtype`. `applied`: a NormWeight.
at::Tensor factors(const at::Tensor& weight, int64_t applied, at::ScalarType dtype) {
  const at::Tensor wide = weight.to(dtype);
  return applied == static_cast<int64_t>(NormWeight::PlusOne) ? wide + 1 : wide;
}

/// Returns true when the loops of rms_norm_host.h normalise x with this weight: of one dtype, or x in fp32 beside
/// halves.
bool has_norm_loops(const at::Tensor& x, const at::Tensor& weight) {
  const bool alike = x.scalar_type() == weight.scalar_type() || x.scalar_type() == at::kFloat;
  return alike && has_lanes(weight.scalar_type()) && x.size(-1) % kLanes == 0 && x.size(-1) == weight.numel();
}

/// Calls `loop` with the set of instructions, and the types of what is normalised and of the weight.
template <class Loop>
void with_types(const at::Tensor& x, const at::Tensor& weight, const Loop& loop) {
  with_lanes(weight.scalar_type(), [&](auto set) {
    if (weight.scalar_type() == at::kFloat) return loop(set, float(), float());
    x.scalar_type() == at::kFloat ? loop(set, float(), c10::BFloat16()) : loop(set, c10::BFloat16(), c10::BFloat16());
  });
}

/// Returns memory for one number of each row, [..., 1].
at::Tensor lengths_of(const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = 1;
  return at::empty(sizes, x.options().dtype(accumulation_dtype(x.scalar_type())));
}

/// Calls `loop` with the first and the number of some rows of x, in parallel; of the Meta device there is nothing to
/// compute.
template <class Loop>
void for_norm_rows(const at::Tensor& x, const Loop& loop) {
  if (!x.is_meta()) for_row_ranges(x.numel() / x.size(-1), x.size(-1), loop);
}

NormResult norm_in_loops(const at::Tensor& x, const at::Tensor& weight, double eps, int64_t applied) {
  const at::Tensor from = x.contiguous(), out = at::empty(x.sizes(), weight.options()), rstd = lengths_of(x);
  const int64_t features = x.size(-1);
  with_types(x, weight, [&]<class Set, class X, class W>(Set, X, W) {
    for_norm_rows(from, [&](int64_t row, int64_t rows) {
      rms_norm_host::forward<Set>(from.const_data_ptr<X>() + row * features, weight.const_data_ptr<W>(),
                                  {rows, features, applied}, static_cast<float>(eps),
                                  out.data_ptr<W>() + row * features, rstd.data_ptr<float>() + row);
    });
  });
  return {out, rstd};
}

SumNormResult sum_norm_in_loops(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps,
                                int64_t applied) {
  const at::Tensor from = x.contiguous(), added = residual.contiguous(), sum = at::empty(x.sizes(), residual.options());
  const at::Tensor out = at::empty(x.sizes(), weight.options()), rstd = lengths_of(residual);
  const int64_t features = x.size(-1);
  with_types(residual, weight, [&]<class Set, class X, class W>(Set, X, W) {
    for_norm_rows(from, [&](int64_t row, int64_t rows) {
      const int64_t first = row * features;
      rms_norm_host::forward_of_sum<Set>(from.const_data_ptr<W>() + first, added.const_data_ptr<X>() + first,
                                         weight.const_data_ptr<W>(), {rows, features, applied}, static_cast<float>(eps),
                                         sum.data_ptr<X>() + first, out.data_ptr<W>() + first,
                                         rstd.data_ptr<float>() + row);
    });
  });
  return {sum, out, rstd};
}

/// The rows whose shares of the weight's gradient are summed before the sums are: results depend on no number of
/// threads.
constexpr int64_t kRowsOfSum = 64;

NormGradients norm_backward_in_loops(const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_sum,
                                     const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                     int64_t applied, bool needs_x, bool needs_weight,
                                     const std::optional<at::Tensor>& weight_gradient) {
  const at::Tensor grad = grad_out.contiguous(), from = x.contiguous(), lengths = rstd.contiguous();
  const at::Tensor added = grad_sum && needs_x ? grad_sum->to(x.scalar_type()).contiguous() : at::Tensor();
  const int64_t features = x.size(-1), rows = x.numel() / features, parts = (rows + kRowsOfSum - 1) / kRowsOfSum;
  at::Tensor grad_x, shares, grad_weight;
  if (needs_x) grad_x = at::empty(x.sizes(), x.options());
  if (needs_weight) shares = at::empty({parts, features}, x.options().dtype(at::kFloat));
  if (!x.is_meta()) {
    with_types(x, weight, [&]<class Set, class X, class W>(Set, X, W) {
      at::parallel_for(0, parts, /*grain_size=*/1, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t row = part * kRowsOfSum, first = row * features;
          rms_norm_host::backward<Set>(
              grad.const_data_ptr<W>() + first, added.defined() ? added.const_data_ptr<X>() + first : nullptr,
              from.const_data_ptr<X>() + first, weight.const_data_ptr<W>(), lengths.const_data_ptr<float>() + row,
              {std::min(rows - row, kRowsOfSum), features, applied}, needs_x ? grad_x.data_ptr<X>() + first : nullptr,
              needs_weight ? shares.data_ptr<float>() + part * features : nullptr);
        }
      });
    });
  }
  if (needs_weight) {
    const at::Tensor sum = shares.sum(0);
    if (weight_gradient) {
      at::Tensor(*weight_gradient).add_(sum);
    } else {
      grad_weight = sum.to(weight.scalar_type());
    }
  }
  return {grad_x, grad_weight};
}

NormResult norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, int64_t applied) {
  if (has_norm_loops(x, weight)) return norm_in_loops(x, weight, eps, applied);
  const at::Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
  const at::Tensor rstd = inverse_lengths(wide, eps);
  const at::Tensor normalised = wide * rstd;
  if (applied == static_cast<int64_t>(NormWeight::Rounded)) {
    return {normalised.to(weight.scalar_type()).mul_(weight), rstd};
  }
  return {(normalised * factors(weight, applied, wide.scalar_type())).to(weight.scalar_type()), rstd};
}

SumNormResult sum_norm_forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps,
                               int64_t applied) {
  if (x.scalar_type() == weight.scalar_type() && has_norm_loops(residual, weight)) {
    return sum_norm_in_loops(x, residual, weight, eps, applied);
  }
  const at::Tensor sum = x + residual;
  auto [out, rstd] = norm_forward(sum, weight, eps, applied);
  return {sum, out, rstd};
}

// Computes dx = r (g - n mean(g n)), with n = x r, r = 1/sqrt(mean(x^2) + eps), g = dy factor; dweight = sum of dy n.
NormGradients norm_backward(const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_sum, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& rstd, int64_t applied, bool needs_x,
                            bool needs_weight, const std::optional<at::Tensor>& weight_gradient) {
  if (grad_out.scalar_type() == weight.scalar_type() && has_norm_loops(x, weight)) {
    return norm_backward_in_loops(grad_out, grad_sum, x, weight, rstd, applied, needs_x, needs_weight, weight_gradient);
  }
  const at::ScalarType wide = rstd.scalar_type();
  const at::Tensor grad = grad_out.to(wide);
  const at::Tensor normalised = x.to(wide) * rstd;

  at::Tensor grad_weight;
  if (needs_weight) {
    const at::Tensor sum = (grad * normalised).reshape({-1, x.size(-1)}).sum(0);
    if (weight_gradient) {
      at::Tensor(*weight_gradient).add_(sum);  // without rounding `sum` first
    } else {
      grad_weight = sum.to(weight.scalar_type());
    }
  }
  at::Tensor grad_x;
  if (needs_x) {
    at::Tensor scaled = grad * factors(weight, applied, wide);
    const at::Tensor projection = (scaled * normalised).mean(-1, /*keepdim=*/true);
    grad_x = scaled.sub_(normalised.mul_(projection)).mul_(rstd).to(x.scalar_type());
    if (grad_sum) grad_x.add_(*grad_sum);
  }
  return {grad_x, grad_weight};
}

// What the kernels for CUDA make.

NormResult norm_on_gpu(const at::Tensor& x, const at::Tensor& weight, double, int64_t) {
  return {at::empty(x.sizes(), weight.options()), lengths_of(x)};
}

SumNormResult sum_norm_on_gpu(const at::Tensor& x, const at::Tensor& residual, const at::Tensor&, double, int64_t) {
  at::Tensor sum = at::empty(x.sizes(), residual.options()), out = at::empty(x.sizes(), x.options());
  at::Tensor rstd = lengths_of(x);
  const at::Tensor added = residual.contiguous();
  return {sum, out, rstd};
}

NormGradients norm_backward_on_gpu(const at::Tensor& grad, const std::optional<at::Tensor>& grad_sum,
                                   const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, int64_t,
                                   bool needs_x, bool needs_weight, const std::optional<at::Tensor>& weight_gradient) {
  at::Tensor of_x, of_weight;
  if (needs_x) of_x = at::empty(x.sizes(), x.options());
  if (needs_weight && !weight_gradient) of_weight = at::empty(weight.sizes(), weight.options());
  const at::Tensor grads = grad.contiguous(), lengths = rstd.contiguous();
  const at::Tensor added = needs_x && grad_sum ? grad_sum->contiguous() : at::Tensor();
  return {of_x, of_weight};
}

NormResult normed(const at::Tensor& x, const at::Tensor& weight, double eps, int64_t applied) {
  static const Operator<decltype(norm_forward)> forward("meshtrain::rms_norm");
  return forward(x, weight, eps, applied);
}

/// The weight of a norm, for the backward: the leaf itself, which a saved tensor with hooks would not be.
struct AppliedWeight : torch::CustomClassHolder {
  AppliedWeight(at::Tensor weight, int64_t how) : tensor(std::move(weight)), applied(how) {}

  at::Tensor tensor;
  int64_t applied;
};

/// Saves the tensor that is normalised, its rstd and the weight.
void save(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight,
          int64_t applied) {
  ctx->save_for_backward({x, rstd});
  ctx->saved_data["weight"] = c10::IValue::make_capsule(c10::make_intrusive<AppliedWeight>(weight, applied));
}

/// Returns the gradients of the tensor that is normalised and of the weight. `grad_sum`: a further gradient of the
/// former.
NormGradients gradients_of(AutogradContext* ctx, const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_sum,
                           bool needs_x, bool needs_weight) {
  static const Operator<decltype(norm_backward)> backward("meshtrain::rms_norm_backward");
  const variable_list saved = ctx->get_saved_variables();
  const auto weight = c10::static_intrusive_pointer_cast<AppliedWeight>(ctx->saved_data["weight"].toCapsule());
  const at::Tensor in_place = needs_weight ? gradient_in_place(weight->tensor) : at::Tensor();
  return backward(grad_out, grad_sum, saved[0], weight->tensor, saved[1], weight->applied, needs_x, needs_weight,
                  in_place.defined() ? std::optional(in_place) : std::nullopt);
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps,
                            int64_t applied) {
    const auto [out, rstd] = normed(x, weight, eps, applied);
    save(ctx, x, rstd, weight, applied);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto [x, weight] =
        gradients_of(ctx, grads[0], std::nullopt, ctx->needs_input_grad(0), ctx->needs_input_grad(1));
    return {x, weight, at::Tensor(), at::Tensor()};
  }
};

struct SumNormFunction : torch::autograd::Function<SumNormFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& residual,
                               const at::Tensor& weight, double eps, int64_t applied) {
    static const Operator<decltype(sum_norm_forward)> forward("meshtrain::rms_norm_of_sum");
    const auto [sum, out, rstd] = forward(x, residual, weight, eps, applied);
    save(ctx, sum, rstd, weight, applied);
    ctx->set_materialize_grads(false);
    return {sum, out};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const bool needs_sum = ctx->needs_input_grad(0) || ctx->needs_input_grad(1);
    if (!grads[1].defined()) return {grads[0], grads[0], at::Tensor(), at::Tensor(), at::Tensor()};
    const auto [sum, weight] = gradients_of(ctx, grads[1], grads[0].defined() ? std::optional(grads[0]) : std::nullopt,
                                            needs_sum, ctx->needs_input_grad(2));
    return {sum, sum, weight, at::Tensor(), at::Tensor()};
  }
};

LayerInput::Again again(double eps, int64_t applied) {
  return [eps, applied](const std::vector<at::Tensor>& kept) {
    const at::NoGradGuard no_grad;
    return std::get<0>(normed(kept[0], kept[1], eps, applied));
  };
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, NormWeight applied) {
  return RmsNormFunction::apply(x, weight, eps, static_cast<int64_t>(applied));
}

LayerInput RmsNorm::recomputed(const at::Tensor& x) const {
  return {forward(x), {x, weight_.tensor}, again(eps_, static_cast<int64_t>(applied_))};
}

RmsNorm::Sum RmsNorm::of_sum(const at::Tensor& x, const at::Tensor& residual, bool recompute) const {
  const auto applied = static_cast<int64_t>(applied_);
  const variable_list both = SumNormFunction::apply(x, residual, weight_.tensor, eps_, applied);
  if (!recompute) return {both[0], both[1]};
  return {both[0], {both[1], {both[0], weight_.tensor}, again(eps_, applied)}};
}

Initializer initializer_of(NormWeight applied) {
  return {applied == NormWeight::PlusOne ? Initializer::Kind::Zeros : Initializer::Kind::Ones};
}

RmsNorm::RmsNorm(std::string name, int64_t size, double eps, NormWeight applied, std::string partial_over,
                 const at::TensorOptions& options)
    : weight_(full_parameter(std::move(name), {size}, initializer_of(applied), options)), eps_(eps), applied_(applied) {
  weight_.partial_over = std::move(partial_over);
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&norm_forward, &norm_on_gpu>(library,
                                      "rms_norm(Tensor x, Tensor weight, float eps, int applied) -> (Tensor, Tensor)");
  define<&sum_norm_forward, &sum_norm_on_gpu>(
      library,
      "rms_norm_of_sum(Tensor x, Tensor residual, Tensor weight, float eps, int applied) -> "
      "(Tensor, Tensor, Tensor)");
  define<&norm_backward, &norm_backward_on_gpu>(
      library,
      "rms_norm_backward(Tensor grad, Tensor? grad_sum, Tensor x, Tensor weight, Tensor rstd, int applied, "
      "bool needs_x, bool needs_weight, Tensor(a!)? weight_gradient) -> (Tensor, Tensor)");
}

}  // namespace meshtrain
