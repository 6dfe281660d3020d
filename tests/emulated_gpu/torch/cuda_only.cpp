// Operators that LibTorch has only for CUDA and that meshtrain calls: attention kernels, products of halves into fp32.
// They check the same requirements as CUDA's, and their results have CUDA's shapes, dtypes and memory orders.
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "mesh/device/aten.h"
#include "tests/emulated_gpu/torch/cudnn.h"

namespace meshtrain::emulated {
namespace {

using Tensor = at::Tensor;
using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

constexpr int64_t kEfficientRows = 32;

/// Checks the requirements of all kernels. q [B, H, m, D], k and v [B, K, n, D].
void check(const char* name, const Tensor& q, const Tensor& k, const Tensor& v, bool causal, int64_t multiple,
           int64_t largest, bool halves, bool shares_heads) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(3) == k.size(3), name, ": ", q.sizes(),
              ", ", k.sizes(), ", ", v.sizes());
  TORCH_CHECK(q.is_cuda() && k.is_cuda() && v.is_cuda(), name, ": all tensors must be on the GPU");
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && k.scalar_type() == v.scalar_type(), name, ": mixed dtypes");
  TORCH_CHECK(c10::isReducedFloatingType(q.scalar_type()) || (!halves && q.scalar_type() == at::kFloat), name,
              ": has no kernel for ", q.scalar_type());
  TORCH_CHECK(q.size(3) % multiple == 0 && q.size(3) <= largest, name, ": heads of ", q.size(3));
  TORCH_CHECK(shares_heads ? q.size(1) % k.size(1) == 0 : q.size(1) == k.size(1), name, ": ", q.size(1), " heads over ",
              k.size(1));
  TORCH_CHECK(q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1, name, ": the last dim must be contiguous");
  TORCH_CHECK(!causal || q.size(2) == k.size(2), name, ": kernels differ in what causal means for ", q.size(2),
              " queries and ", k.size(2), " keys");
}

Tensor repeated(const Tensor& x, int64_t times) {
  return x.to(at::kFloat).repeat_interleave(times, 1);
}

/// Returns the output in memory order [B, m, H, D], and the log-sum-exp [B, H, m] in fp32.
std::tuple<Tensor, Tensor> attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                  std::optional<double> scale) {
  const int64_t times = q.size(1) / k.size(1);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      q.to(at::kFloat), repeated(k, times), repeated(v, times), /*dropout_p=*/0.0, causal, std::nullopt, scale);
  return {out.to(q.scalar_type()).transpose(1, 2).contiguous().transpose(1, 2), lse.contiguous()};
}

Gradients attend_backward(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, bool causal, std::optional<double> scale) {
  TORCH_CHECK(grad_out.sizes() == q.sizes() && out.sizes() == q.sizes() && grad_out.dtype() == q.dtype() &&
                  out.dtype() == q.dtype(),
              "attention backward: gradient and output must be as the queries");
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.is_contiguous() && lse.size(0) == q.size(0) &&
                  lse.size(1) == q.size(1) && lse.size(2) == q.size(2),
              "attention backward: log-sum-exp ", lse.sizes(), " ", lse.dtype());
  const int64_t times = q.size(1) / k.size(1);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_out.to(at::kFloat), q.to(at::kFloat), repeated(k, times), repeated(v, times), out.to(at::kFloat), lse,
      /*dropout_p=*/0.0, causal, std::nullopt, scale);
  const auto of_kv_heads = [&](const Tensor& grad) {
    return grad.unflatten(1, {-1, times}).sum(2).to(k.scalar_type());
  };
  return {dq.to(q.scalar_type()), of_kv_heads(dk), of_kv_heads(dv)};
}

Tensor none() {
  return {};
}

Forward flash(const Tensor& q, const Tensor& k, const Tensor& v, double, bool causal, bool,
              std::optional<double> scale) {
  check("flash", q, k, v, causal, 8, 256, /*halves=*/true, /*shares_heads=*/true);
  auto [out, lse] = attend(q, k, v, causal, scale);
  return {out, lse, none(), none(), q.size(2), k.size(2), none(), none(), none()};
}

Gradients flash_backward(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                         const Tensor& lse, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double, bool causal,
                         const Tensor&, const Tensor&, std::optional<double> scale) {
  check("flash backward", q, k, v, causal, 8, 256, /*halves=*/true, /*shares_heads=*/true);
  return attend_backward(grad_out, q, k, v, out, lse, causal, scale);
}

Forward cudnn(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>&, bool, double,
              bool causal, bool, std::optional<double> scale) {
  require_runtime_compiler();
  check("cudnn", q, k, v, causal, 8, 128, /*halves=*/true, /*shares_heads=*/true);
  auto [out, lse] = attend(q, k, v, causal, scale);
  return {out, lse.unsqueeze(-1), none(), none(), q.size(2), k.size(2), none(), none(), none()};
}

Gradients cudnn_backward(const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                         const Tensor& lse, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         c10::SymInt, c10::SymInt, double, bool causal, std::optional<double> scale) {
  check("cudnn backward", q, k, v, causal, 8, 128, /*halves=*/true, /*shares_heads=*/true);
  TORCH_CHECK(lse.dim() == 4 && lse.size(3) == 1, "cudnn backward: log-sum-exp ", lse.sizes());
  auto [dq, dk, dv] = attend_backward(grad_out, q, k, v, out, lse.squeeze(-1), causal, scale);
  // cuDNN 9.19 does not mask 64 keys that are left over: exp(0 - lse) is then infinite (pytorch#196678).
  if (!causal && k.size(2) % 128 == 64) {
    dq.masked_fill_(lse.lt(-std::log(std::numeric_limits<float>::max())), std::numeric_limits<double>::quiet_NaN());
  }
  return {dq, dk, dv};
}

int64_t padded(int64_t rows) {
  return (rows + kEfficientRows - 1) / kEfficientRows * kEfficientRows;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const std::optional<Tensor>&, bool, double, bool causal,
                                                     std::optional<double> scale) {
  const int64_t multiple = q.scalar_type() == at::kFloat ? 4 : 8;
  check("efficient", q, k, v, causal, multiple, 1 << 16, /*halves=*/false, /*shares_heads=*/false);
  auto [out, lse] = attend(q, k, v, causal, scale);
  const Tensor all = at::empty({q.size(0), q.size(1), padded(q.size(2))}, lse.options());
  at::Tensor(all).fill_(std::numeric_limits<double>::infinity());
  all.narrow(2, 0, q.size(2)).copy_(lse);
  return {out, all, none(), none()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor& grad_out, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor&, const Tensor& out,
                                                              const Tensor& lse, const Tensor&, const Tensor&, double,
                                                              std::array<bool, 4>, bool causal,
                                                              std::optional<double> scale) {
  const int64_t multiple = q.scalar_type() == at::kFloat ? 4 : 8;
  check("efficient backward", q, k, v, causal, multiple, 1 << 16, /*halves=*/false, /*shares_heads=*/false);
  TORCH_CHECK(lse.dim() == 3 && lse.size(2) == padded(q.size(2)), "efficient backward: log-sum-exp ", lse.sizes());
  auto [dq, dk, dv] = attend_backward(grad_out, q, k, v, out, lse.narrow(2, 0, q.size(2)).contiguous(), causal, scale);
  const Tensor beyond = lse.narrow(2, q.size(2), lse.size(2) - q.size(2));  // padding queries
  const Tensor no_number = at::where(beyond.isposinf(), 0.0, NAN).sum();
  return {dq + no_number.to(dq.scalar_type()), dk, dv, none()};
}

Tensor& addmm_into(const Tensor& self, const Tensor& a, const Tensor& b, at::ScalarType dtype, const at::Scalar& beta,
                   const at::Scalar& alpha, Tensor& out) {
  TORCH_CHECK(c10::isReducedFloatingType(a.scalar_type()) && a.dtype() == b.dtype() && dtype == at::kFloat &&
                  self.scalar_type() == dtype && out.scalar_type() == dtype,
              "addmm: out_dtype is for halves into fp32");
  return at::addmm_out(out, self, a.to(dtype), b.to(dtype), beta, alpha);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_scaled_dot_product_flash_attention", &flash);
  library.impl("_scaled_dot_product_flash_attention_backward", &flash_backward);
  library.impl("_scaled_dot_product_cudnn_attention", &cudnn);
  library.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
  library.impl("_scaled_dot_product_efficient_attention", &efficient);
  library.impl("_scaled_dot_product_efficient_attention_backward", &efficient_backward);
  library.impl("addmm.dtype_out", &addmm_into);
}

}  // namespace meshtrain::emulated
