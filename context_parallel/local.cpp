#include "context_parallel/local.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "context_parallel/block_attention.h"

namespace meshtrain {

LocalAttention::LocalAttention(const SequenceLayout& layout, int64_t batch, double scale) : scale_(scale) {
  if (layout.ranks() != 1) throw std::invalid_argument("local attention: the layout has several ranks");
  documents_ = plan_hop(layout, batch, /*source=*/0);
}

AttentionCall::Forward LocalAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  RunningAttention running(q, scale_);
  for (const Block& document : documents_) running.add(document, k, v);
  const Attended attended = running.finish();
  return {attended.out, {q, k, v, attended.out, attended.lse}};
}

AttentionGradients LocalAttention::backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
  const Attended attended{saved[3], saved[4]};
  if (documents_.size() == 1) {
    const AttentionGradients all = attend_backward(grad_out, q, k, v, attended, /*causal=*/true, scale_);
    return {all.q.to(q.scalar_type()), all.k.to(k.scalar_type()), all.v.to(v.scalar_type())};
  }

  const auto part = [](const at::Tensor& tensor, const Block& block) {  // queries and keys are the same positions
    return tensor.narrow(0, block.first_row, block.num_rows).narrow(2, block.query, block.num_queries);
  };
  AttentionGradients all{empty_by_position(q), empty_by_position(k), empty_by_position(v)};
  for (const Block& block : documents_) {
    const AttentionGradients gradients =
        attend_backward(part(grad_out, block), part(q, block), part(k, block), part(v, block),
                        {part(attended.out, block), part(attended.lse, block)}, /*causal=*/true, scale_);
    part(all.q, block).copy_(gradients.q);
    part(all.k, block).copy_(gradients.k);
    part(all.v, block).copy_(gradients.v);
  }
  return all;
}

}  // namespace meshtrain
