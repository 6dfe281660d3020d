#include <torch/library.h>

#include <optional>
#include <tuple>

#include "mesh/device/cuda/tensors.h"
#include "runtime/training/model/operators/rms_norm_kernel.h"
#include "runtime/training/model/pieces.h"

namespace meshtrain::cuda {
namespace {

/// Returns `x` as rows of its last dim, without a copy if its rows have at most two strides, as heads that are part of
/// more heads do. `holder` keeps their memory alive.
Rows rows_of(const at::Tensor& x, at::Tensor& holder) {
  holder = x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
  int64_t inner = 1, dim = holder.dim() - 2;  // dims that follow one another
  int64_t inner_stride = dim >= 0 ? holder.stride(dim) : 0;
  for (; dim >= 0 && (holder.size(dim) == 1 || holder.stride(dim) == inner * inner_stride); --dim) {
    inner *= holder.size(dim);
  }
  int64_t outer = 1, outer_stride = dim >= 0 ? holder.stride(dim) : 0;
  for (; dim >= 0 && (holder.size(dim) == 1 || holder.stride(dim) == outer * outer_stride); --dim) {
    outer *= holder.size(dim);
  }
  if (dim < 0) return {holder.const_data_ptr(), inner, inner_stride, outer_stride};
  holder = x.contiguous();
  return {holder.const_data_ptr(), holder.numel() / holder.size(-1), holder.size(-1), 0};
}

/// Checks a norm of `x`, which is fp32 or has the dtype of `weight`, and returns the types of both.
NormElements checked_norm(const char* name, const at::Tensor& x, const at::Tensor& weight) {
  if (x.scalar_type() != at::kFloat) check_alike(name, x, {weight});
  TORCH_CHECK(x.size(-1) <= kLongestNorm && weight.is_contiguous(), name, ": rows of ", x.size(-1),
              " elements, the kernel takes up to ", kLongestNorm);
  TORCH_CHECK(weight.device() == x.device(), name, ": x is on ", x.device(), ", the weight on ", weight.device());
  return {element_of(name, x), element_of(name, weight)};
}

AppliedWeight applied_weight(const at::Tensor& weight, int64_t applied) {
  return {weight.const_data_ptr(), applied == static_cast<int64_t>(NormWeight::PlusOne) ? 1.0f : 0.0f,
          applied == static_cast<int64_t>(NormWeight::Rounded)};
}

std::vector<int64_t> lengths_of(const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = 1;
  return sizes;
}

std::tuple<at::Tensor, at::Tensor> norm(const at::Tensor& x, const at::Tensor& weight, double eps, int64_t applied) {
  const NormElements elements = checked_norm("rms_norm", x, weight);
  const TensorDeviceGuard device(x);
  at::Tensor out = at::empty(x.sizes(), weight.options()),
             rstd = at::empty(lengths_of(x), x.options().dtype(at::kFloat));
  at::Tensor holder;
  if (x.numel() == 0) return {out, rstd};
  rms_norm(elements, rows_of(x, holder), nullptr, applied_weight(weight, applied), nullptr, out.data_ptr(),
           rstd.data_ptr<float>(), rstd.numel(), x.size(-1), eps, device.stream());
  return {out, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_of_sum(const at::Tensor& x, const at::Tensor& residual,
                                                           const at::Tensor& weight, double eps, int64_t applied) {
  const NormElements elements = checked_norm("rms_norm_of_sum", residual, weight);
  check_alike("rms_norm_of_sum", weight, {x});
  TORCH_CHECK(x.sizes() == residual.sizes(), "rms_norm_of_sum: ", x.sizes(), " and ", residual.sizes());
  const TensorDeviceGuard device(x);
  at::Tensor sum = at::empty(x.sizes(), residual.options()), out = at::empty(x.sizes(), x.options());
  at::Tensor rstd = at::empty(lengths_of(x), x.options().dtype(at::kFloat)), holder;
  if (x.numel() == 0) return {sum, out, rstd};
  const at::Tensor added = residual.contiguous();
  rms_norm(elements, rows_of(x, holder), added.const_data_ptr(), applied_weight(weight, applied), sum.data_ptr(),
           out.data_ptr(), rstd.data_ptr<float>(), rstd.numel(), x.size(-1), eps, device.stream());
  return {sum, out, rstd};
}

std::tuple<at::Tensor, at::Tensor> norm_backward(const at::Tensor& grad, const std::optional<at::Tensor>& grad_sum,
                                                 const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                                 int64_t applied, bool needs_x, bool needs_weight,
                                                 const std::optional<at::Tensor>& weight_gradient) {
  const NormElements elements = checked_norm("rms_norm_backward", x, weight);
  check_alike("rms_norm_backward", weight, {grad});
  const TensorDeviceGuard device(x);
  const int64_t size = x.size(-1), rows = rstd.numel();
  at::Tensor of_x, of_weight, partial, into;
  if (needs_x) of_x = at::empty(x.sizes(), x.options());
  if (needs_weight && !weight_gradient) of_weight = at::zeros(weight.sizes(), weight.options());
  if (needs_weight) into = weight_gradient ? *weight_gradient : of_weight;
  if (x.numel() == 0) return {of_x, of_weight};

  const at::TensorOptions wide = x.options().dtype(at::kFloat);
  if (needs_weight) partial = at::empty({rms_norm_partial_rows(rows, size), size}, wide);
  const at::Tensor grads = grad.contiguous(), lengths = rstd.contiguous();
  const at::Tensor added = needs_x && grad_sum ? grad_sum->contiguous() : at::Tensor();
  if (added.defined()) check_alike("rms_norm_backward", x, {added});
  RmsNormGradients gradients;
  if (needs_x) gradients.x = of_x.data_ptr();
  if (needs_weight) gradients.partial = partial.data_ptr<float>();
  at::Tensor holder;
  rms_norm_backward(elements, grads.const_data_ptr(), added.defined() ? added.const_data_ptr() : nullptr,
                    rows_of(x, holder), applied_weight(weight, applied), lengths.const_data_ptr<float>(), gradients,
                    rows, size, device.stream());
  if (needs_weight) {
    TORCH_CHECK(into.is_contiguous(), "rms_norm_backward: the weight's gradient is not contiguous");
    sum_rows(element_of("rms_norm_backward", into), partial.const_data_ptr<float>(), partial.size(0), size,
             into.data_ptr(), weight_gradient.has_value(), device.stream());
  }
  return {of_x, of_weight};
}

TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("rms_norm", norm);
  library.impl("rms_norm_of_sum", norm_of_sum);
  library.impl("rms_norm_backward", norm_backward);
}

}  // namespace
}  // namespace meshtrain::cuda
