#include "context_parallel/attention_kernels.h"

#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "context_parallel/capped_attention.h"
#include "context_parallel/gpu_attention.h"
#include "context_parallel/host_attention.h"
#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/device/host_scratch.h"
#include "mesh/device/meta_device.h"

namespace meshtrain {

namespace {

/// Returns [B, H, n, D] as [B, n, H, D] in memory; copies when necessary.
at::Tensor ordered(const at::Tensor& tensor) {
  return tensor.transpose(1, 2).contiguous().transpose(1, 2);
}

/// Throws unless a kernel exists for the dtype and device of `q`. The CPU uses host_attention.h where it takes the
/// tensors, else LibTorch's flash attention, in all four dtypes (it has an fp64 path); the Meta device has their
/// shapes. On CUDA the shape decides (attention_choice.h).
void check_kernel(const at::Tensor& q, const AttentionRule& rule) {
  if (rule.window > 0) throw std::invalid_argument("attention: the kernel for " + q.device().str() + " has no window");
  const at::ScalarType dtype = q.scalar_type();
  const bool known = dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  if (known && (q.is_cpu() || q.is_meta())) return;
  throw std::invalid_argument("attention: there is no kernel for " + std::string(c10::toString(dtype)) + " on " +
                              q.device().str());
}

/// Returns `tensor` with contiguous D, which the kernels need.
at::Tensor readable(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : ordered(tensor);
}

/// Returns the positions in the opposite order. LibTorch 2.11 has no flip for Meta tensors.
at::Tensor reversed(const at::Tensor& tensor) {
  return tensor.is_meta() ? at::empty_like(tensor) : tensor.flip(2);
}

}  // namespace

at::Tensor empty_by_position(const at::Tensor& like, at::ScalarType dtype) {
  std::vector<int64_t> sizes = like.sizes().vec();
  std::swap(sizes[1], sizes[2]);
  return at::empty(sizes, like.options().dtype(dtype)).transpose(1, 2);
}

AttentionResult attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Pairs pairs,
                       const AttentionRule& rule) {
  if (pairs == Pairs::AntiCausal) {
    const AttentionResult attended = attend(reversed(q), reversed(k), reversed(v), Pairs::Causal, rule);
    return {ordered(reversed(attended.out)), reversed(attended.lse)};
  }
  if (rule.softcap > 0) return attend_capped(q, k, v, pairs, rule);
  const bool causal = pairs == Pairs::Causal;
  if (is_gpu(q.device())) {
    const AttentionResult attended = attend_on_gpu(readable(q), readable(k), readable(v), causal, rule);
    return {ordered(attended.out), attended.lse};
  }
  check_kernel(q, rule);
  if (multiplied_in_fp32(q)) {
    return attend(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), pairs, rule);
  }
  const at::Tensor queries = readable(q), keys = readable(k), values = readable(v);
  if (host_attention_takes(queries, keys, values)) return host_attention(queries, keys, values, causal, rule.scale);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(queries, keys, values, /*dropout_p=*/0.0, causal,
                                                                    /*attn_mask=*/std::nullopt, rule.scale);
  return {ordered(out), std::move(lse)};  // the kernel writes in the memory order of q
}

AttentionGradients attend_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                   const at::Tensor& v, const AttentionResult& attended, Pairs pairs,
                                   const AttentionRule& rule) {
  if (pairs == Pairs::AntiCausal) {
    const AttentionGradients gradients =
        attend_backward(reversed(grad_out), reversed(q), reversed(k), reversed(v),
                        {reversed(attended.out), reversed(attended.lse)}, Pairs::Causal, rule);
    return {reversed(gradients.q), reversed(gradients.k), reversed(gradients.v)};
  }
  if (rule.softcap > 0) return attend_capped_backward(grad_out, q, k, v, attended, pairs, rule);
  const bool causal = pairs == Pairs::Causal;
  if (is_gpu(q.device())) {  // gradients and output in one memory order, as cuDNN needs them
    return attend_backward_on_gpu(ordered(grad_out), readable(q), readable(k), readable(v),
                                  {ordered(attended.out), attended.lse}, causal, rule);
  }
  if (multiplied_in_fp32(q)) {
    return attend_backward(grad_out.to(at::kFloat), q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat),
                           {attended.out.to(at::kFloat), attended.lse}, pairs, rule);
  }
  const at::Tensor queries = readable(q), keys = readable(k), values = readable(v);
  if (host_attention_takes(queries, keys, values)) {
    return host_attention_backward(ordered(grad_out), queries, keys, values, attended, causal, rule.scale);
  }
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      readable(grad_out), queries, keys, values, attended.out, attended.lse, /*dropout_p=*/0.0, causal,
      /*attn_mask=*/std::nullopt, rule.scale);
  return {std::move(dq), std::move(dk), std::move(dv)};
}

namespace {

// LibTorch 2.11 has no Meta kernels for these two; shapes, dtypes, memory order and, where the Meta device stands for
// it, buffers are the CPU's.

at::Tensor as_written(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

/// Returns what the kernel for the CPU allocates for a moment besides its results (host_scratch()): a thread's buffers
/// for blocks of queries and keys, whose sizes depend on the lengths up to those that are measured here.
at::Tensor scratch_of(bool backward, const at::Tensor& q, const at::Tensor& k) {
  constexpr int64_t kQueries = 768, kKeys = 512;
  if (!has_host_scratch(q)) return {};
  const int64_t queries = std::min(q.size(2), kQueries), keys = std::min(k.size(2), kKeys), features = q.size(3);
  const at::ScalarType dtype = q.scalar_type();
  const std::string sizes = std::to_string(queries) + " " + std::to_string(keys) + " " + std::to_string(features);
  return host_scratch((backward ? "attention backward " : "attention ") + sizes + c10::toString(dtype), [&] {
    const auto made = [&](int64_t length) {
      return at::zeros({1, length, 1, features}, at::TensorOptions(dtype)).transpose(1, 2);
    };
    const at::Tensor one = made(queries), other = made(keys);
    const at::Tensor lse = at::zeros({1, queries, 1}, at::TensorOptions(accumulation_dtype(dtype))).transpose(1, 2);
    return HostComputation([=]() -> std::vector<at::Tensor> {
      if (!backward) {
        auto [out, scores] = at::_scaled_dot_product_flash_attention_for_cpu(one, other, other);
        return {out, scores};
      }
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          one, one, other, other, one, lse, /*dropout_p=*/0.0, /*is_causal=*/false);
      return {dq, dk, dv};
    });
  });
}

std::tuple<at::Tensor, at::Tensor> meta_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor&, double,
                                                bool, const std::optional<at::Tensor>&, std::optional<double>) {
  const at::ScalarType lse_dtype = accumulation_dtype(q.scalar_type());
  at::Tensor out = at::empty_like(q),
             lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(lse_dtype)).transpose(1, 2);
  const at::Tensor scratch = scratch_of(/*backward=*/false, q, k);
  return {std::move(out), std::move(lse)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> meta_backward(const at::Tensor& grad_out, const at::Tensor& q,
                                                             const at::Tensor& k, const at::Tensor& v,
                                                             const at::Tensor&, const at::Tensor&, double, bool,
                                                             const std::optional<at::Tensor>&, std::optional<double>) {
  std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients{as_written(q), as_written(k), as_written(v)};
  const at::Tensor scratch = scratch_of(/*backward=*/true, q, k);
  at::Tensor copy;  // the kernel's, of gradients whose positions are not contiguous
  if (is_host(q.device()) && !grad_out.transpose(1, 2).is_contiguous()) copy = at::empty_like(grad_out);
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_scaled_dot_product_flash_attention_for_cpu", meta_forward);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", meta_backward);
}

}  // namespace meshtrain
