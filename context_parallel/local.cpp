#include "context_parallel/local.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "context_parallel/block_attention.h"

namespace meshtrain {

LocalAttention::LocalAttention(const SequenceLayout& layout, int64_t batch, double scale, const Packing& packing)
    : scale_(scale) {
  if (layout.ranks() != 1) throw std::invalid_argument("local attention: the layout has several ranks");
  plan_ = hop_passes(layout, batch, /*source=*/0, packing);
}

AttentionCall::Forward LocalAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  RunningAttention running(q, scale_);
  for (const Pass& pass : plan_->passes) running.add(pass, k, v);
  const Attended attended = running.finish();
  return {attended.out, {q, k, v, attended.out, attended.lse}};
}

AttentionGradients LocalAttention::backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
  const Attended attended{saved[3], saved[4]};
  const auto computed = [&](const Pass& pass) {
    return std::move(attend_backward(pass, grad_out, q, k, v, attended, scale_).front());
  };
  if (plan_->passes.size() == 1) {
    const AttentionGradients all = computed(plan_->passes.front());
    return {all.q.to(q.scalar_type()), all.k.to(k.scalar_type()), all.v.to(v.scalar_type())};
  }

  AttentionGradients all{empty_by_position(q), empty_by_position(k), empty_by_position(v)};
  for (const Pass& pass : plan_->passes) {
    const ScoreBlock& block = pass.blocks.front();
    const AttentionGradients gradients = computed(pass);
    const auto part = [&](const at::Tensor& tensor) {  // queries and keys are the same positions
      return tensor.narrow(0, block.first_row, block.num_rows).narrow(2, block.query, block.num_queries);
    };
    part(all.q).copy_(gradients.q);
    part(all.k).copy_(gradients.k);
    part(all.v).copy_(gradients.v);
  }
  return all;
}

}  // namespace meshtrain
