#include "tests/context_parallel/reference.h"

#include <limits>

#include "mesh/device/aten.h"

namespace meshtrain::testing {

at::Tensor document_ids(const std::vector<int64_t>& starts, int64_t sequence_length) {
  at::Tensor begins = at::zeros({sequence_length}, at::kLong);
  for (const int64_t start : starts) begins[start] = 1;
  return begins.cumsum(0);
}

at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Documents& documents,
                           const AttentionRule& rule) {
  const int64_t batch = q.size(0), length = q.size(2), repeats = q.size(1) / k.size(1);
  std::vector<at::Tensor> seen;
  for (int64_t row = 0; row < batch; ++row) {
    seen.push_back(visible(documents.empty() ? std::vector<int64_t>{} : documents[row], length, rule.window));
  }
  const at::Tensor keys = k.to(at::kDouble).repeat_interleave(repeats, 1);
  const at::Tensor values = v.to(at::kDouble).repeat_interleave(repeats, 1);
  at::Tensor scores = q.to(at::kDouble).matmul(keys.transpose(2, 3)).mul(rule.scale);
  if (rule.softcap > 0) scores = scores.div(rule.softcap).tanh().mul(rule.softcap);
  const at::Tensor hidden = at::stack(seen).unsqueeze(1).logical_not();
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  if (rule.sinks.defined()) {
    const at::Tensor sinks = rule.sinks.to(at::kDouble).view({1, -1, 1, 1}).expand({batch, -1, length, 1});
    scores = at::cat({scores, sinks}, 3);
  }
  return scores.softmax(-1).narrow(3, 0, length).matmul(values);
}

at::Tensor visible(const std::vector<int64_t>& starts, int64_t sequence_length, int64_t window) {
  const at::Tensor ids = document_ids(starts, sequence_length);
  const at::Tensor seen = ids.unsqueeze(1).eq(ids.unsqueeze(0)).tril();
  return (window > 0 ? seen.triu(1 - window) : seen).to(at::kLong);
}

Heads split_heads(const at::Tensor& fused, int64_t num_heads, int64_t num_kv_heads) {
  const std::vector<at::Tensor> parts =
      fused.transpose(1, 2).split_with_sizes({num_heads, num_kv_heads, num_kv_heads}, 1);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace meshtrain::testing
