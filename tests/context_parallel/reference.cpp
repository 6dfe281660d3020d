#include "tests/context_parallel/reference.h"

#include <ATen/ATen.h>

#include <limits>

namespace meshtrain::testing {

at::Tensor document_ids(const std::vector<int64_t>& starts, int64_t sequence_length) {
  at::Tensor begins = at::zeros({sequence_length}, at::kLong);
  for (const int64_t start : starts) begins[start] = 1;
  return begins.cumsum(0);
}

at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Documents& documents,
                           double scale) {
  const int64_t batch = q.size(0), length = q.size(2), repeats = q.size(1) / k.size(1);
  std::vector<at::Tensor> seen;
  for (int64_t row = 0; row < batch; ++row) {
    const at::Tensor ids = document_ids(documents.empty() ? std::vector<int64_t>{} : documents[row], length);
    seen.push_back(ids.unsqueeze(1).eq(ids.unsqueeze(0)).tril());
  }
  const at::Tensor keys = k.to(at::kDouble).repeat_interleave(repeats, 1);
  const at::Tensor values = v.to(at::kDouble).repeat_interleave(repeats, 1);
  const at::Tensor scores = q.to(at::kDouble).matmul(keys.transpose(2, 3)).mul(scale);
  const at::Tensor hidden = at::stack(seen).unsqueeze(1).logical_not();
  return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1).matmul(values);
}

Heads split_heads(const at::Tensor& fused, int64_t num_heads, int64_t num_kv_heads) {
  const std::vector<at::Tensor> parts =
      fused.transpose(1, 2).split_with_sizes({num_heads, num_kv_heads, num_kv_heads}, 1);
  return {parts[0], parts[1], parts[2]};
}

}  // namespace meshtrain::testing
