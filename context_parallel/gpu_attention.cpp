#include "context_parallel/gpu_attention.h"

#include <limits>
#include <tuple>
#include <utility>

#include "context_parallel/attention_choice.h"
#include "context_parallel/meta_window.h"
#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"

namespace meshtrain {
namespace {

constexpr int64_t kEfficientRows = 32;  // Efficient pads the queries of its log-sum-exp to a multiple of this

AttentionKernel kernel_for(const at::Tensor& q, const at::Tensor& k, bool causal, int64_t window) {
  return choose_attention({q.scalar_type(), q.size(1), k.size(1), q.size(3), q.size(2), k.size(2), causal, window},
                          open_cuda_plugin().architecture(q.get_device()));
}

/// Returns [B, heads, n, D] as flash attention without its wrapper takes it, [B, n, heads, D], and back.
at::Tensor by_query(const at::Tensor& tensor) {
  return tensor.transpose(1, 2);
}

/// Repeats each KV head for the queries that share it: [B, K, m, D] -> [B, H, m, D].
at::Tensor repeated(const at::Tensor& x, int64_t times) {
  return times == 1 ? x : x.repeat_interleave(times, 1);
}

/// Sums the gradients of each KV head's repetitions, in fp32: [B, H, m, D] -> [B, K, m, D].
at::Tensor summed(const at::Tensor& grad, int64_t times) {
  if (times == 1) return grad;
  return grad.transpose(1, 2).unflatten(2, {-1, times}).sum(3, /*keepdim=*/false, at::kFloat).transpose(1, 2);
}

/// Returns a dummy: without dropout no kernel reads it.
at::Tensor no_random_numbers(const at::Tensor& like) {
  return at::empty({}, like.options().dtype(at::kLong));
}

// LibTorch has no Meta kernels for those of a GPU: attention_kernels.cpp has shapes, dtypes and memory order for the
// CPU's, which are the same.

AttentionResult meta_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                               double scale) {
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0, causal,
                                                                    /*attn_mask=*/std::nullopt, scale);
  return {std::move(out), std::move(lse)};
}

AttentionGradients meta_attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const AttentionResult& attended, bool causal,
                                           double scale) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_out, q, k, v, attended.out, attended.lse, /*dropout_p=*/0.0, causal, /*attn_mask=*/std::nullopt, scale);
  return {std::move(dq), std::move(dk), std::move(dv)};
}

}  // namespace

AttentionResult attend_on_gpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                              const AttentionRule& rule) {
  const double scale = rule.scale;
  if (q.is_meta()) {
    const MetaWindow window(rule.window);
    return meta_attention(q, k, v, causal, scale);
  }
  at::Tensor out, lse;
  const AttentionKernel kernel = kernel_for(q, k, causal, rule.window);
  switch (kernel) {
    case AttentionKernel::CuDnn: {
      auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, /*attn_bias=*/std::nullopt,
                                                            /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, causal,
                                                            /*return_debug_mask=*/false, scale);
      out = std::get<0>(result);
      lse = std::get<1>(result);
      break;
    }
    case AttentionKernel::Flash: {
      if (rule.window > 0) {
        auto result =
            at::_flash_attention_forward(by_query(q), by_query(k), by_query(v), /*cum_seq_q=*/{}, /*cum_seq_k=*/{},
                                         q.size(2), k.size(2), /*dropout_p=*/0.0, causal, /*return_debug_mask=*/false,
                                         scale, /*window_size_left=*/rule.window - 1, /*window_size_right=*/0);
        out = by_query(std::get<0>(result));
        lse = std::get<1>(result);
        break;
      }
      auto result = at::_scaled_dot_product_flash_attention(q, k, v, /*dropout_p=*/0.0, causal,
                                                            /*return_debug_mask=*/false, scale);
      out = std::get<0>(result);
      lse = std::get<1>(result);
      break;
    }
    case AttentionKernel::Efficient: {
      const int64_t times = q.size(1) / k.size(1);
      auto result = at::_scaled_dot_product_efficient_attention(q, repeated(k, times), repeated(v, times),
                                                                /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true,
                                                                /*dropout_p=*/0.0, causal, scale);
      out = std::get<0>(result);
      lse = std::get<1>(result).narrow(2, 0, q.size(2));
      break;
    }
  }
  return {std::move(out), lse.reshape({q.size(0), q.size(1), q.size(2)})};  // cuDNN's has a last dim of 1
}

AttentionGradients attend_backward_on_gpu(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionResult& attended, bool causal,
                                          const AttentionRule& rule) {
  const double scale = rule.scale;
  if (q.is_meta()) {
    const MetaWindow window(rule.window);
    return meta_attention_backward(grad_out, q, k, v, attended, causal, scale);
  }
  const at::Tensor none = no_random_numbers(q), lse = attended.lse.contiguous();
  const at::Tensor& out = attended.out;
  switch (kernel_for(q, k, causal, rule.window)) {
    case AttentionKernel::CuDnn: {
      auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
          grad_out, q, k, v, out, lse.unsqueeze(-1), none, none, /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{},
          q.size(2), k.size(2), /*dropout_p=*/0.0, causal, scale);
      return {std::move(dq), std::move(dk), std::move(dv)};
    }
    case AttentionKernel::Flash: {
      if (rule.window > 0) {
        auto [dq, dk, dv] = at::_flash_attention_backward(
            by_query(grad_out), by_query(q), by_query(k), by_query(v), by_query(out), lse, /*cum_seq_q=*/{},
            /*cum_seq_k=*/{}, q.size(2), k.size(2), /*dropout_p=*/0.0, causal, none, none, scale,
            /*window_size_left=*/rule.window - 1, /*window_size_right=*/0);
        return {by_query(dq), by_query(dk), by_query(dv)};
      }
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
          grad_out, q, k, v, out, lse, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, q.size(2), k.size(2), /*dropout_p=*/0.0,
          causal, none, none, scale);
      return {std::move(dq), std::move(dk), std::move(dv)};
    }
    case AttentionKernel::Efficient: {
      const int64_t times = q.size(1) / k.size(1), beyond = -q.size(2) & (kEfficientRows - 1);
      constexpr double kInfinity = std::numeric_limits<double>::infinity();  // for the padding queries
      const at::Tensor padded = beyond == 0 ? lse : at::constant_pad_nd(lse, {0, beyond}, kInfinity);
      auto [dq, dk, dv, unused] = at::_scaled_dot_product_efficient_attention_backward(
          grad_out, q, repeated(k, times), repeated(v, times), /*attn_bias=*/{}, out, padded, none, none,
          /*dropout_p=*/0.0, {true, true, true, false}, causal, scale);
      return {std::move(dq), summed(dk, times).to(k.scalar_type()), summed(dv, times).to(v.scalar_type())};
    }
  }
  return {};
}

}  // namespace meshtrain
