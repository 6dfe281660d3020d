#include "context_parallel/packed_attention.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "context_parallel/attention_choice.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

void note(const at::Tensor& q, const at::Tensor& k, bool causal, int64_t window) {
  note_documents({q.scalar_type(), q.size(1), k.size(1), q.size(2), 0, 0, causal, window});
}

/// The window of flash attention: keys before and after that a query sees; none: all that causality leaves.
struct FlashWindow {
  explicit FlashWindow(int64_t window) {
    if (window > 0) left = window - 1, right = 0;
  }
  std::optional<int64_t> left, right;
};

at::Tensor unit_stride(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

/// Returns an upper limit for the number of queries, at least 2. For 1, flash treats query heads that share a KV head
/// as queries of one head and allocates memory for that, an arrangement for generation.
int64_t most_queries(const PackedLengths& lengths) {
  return std::max<int64_t>(lengths.longest_queries, 2);
}

}  // namespace

AttentionResult attend_packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const PackedLengths& lengths, bool causal, const AttentionRule& rule) {
  note(q, k, causal, rule.window);
  const FlashWindow window(rule.window);
  auto result =
      at::_flash_attention_forward(unit_stride(q), unit_stride(k), unit_stride(v), lengths.queries, lengths.keys,
                                   most_queries(lengths), lengths.longest_keys, /*dropout_p=*/0.0, causal,
                                   /*return_debug_mask=*/false, rule.scale, window.left, window.right);
  return {std::get<0>(result).contiguous(), std::get<1>(result)};
}

AttentionGradients attend_packed_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionResult& attended,
                                          const PackedLengths& lengths, bool causal, const AttentionRule& rule) {
  const FlashWindow window(rule.window);
  const at::Tensor none = at::empty({}, q.options().dtype(at::kLong));  // random numbers: there is no dropout
  auto [dq, dk, dv] = at::_flash_attention_backward(
      grad_out.contiguous(), unit_stride(q), unit_stride(k), unit_stride(v), attended.out.contiguous(),
      attended.lse.contiguous(), lengths.queries, lengths.keys, most_queries(lengths), lengths.longest_keys,
      /*dropout_p=*/0.0, causal, none, none, rule.scale, window.left, window.right);
  return {dq.contiguous(), dk.contiguous(), dv.contiguous()};
}

}  // namespace meshtrain
