#include "context_parallel/local.h"

#include <algorithm>
#include <stdexcept>

#include "context_parallel/block_attention.h"
#include "context_parallel/key_value_wire.h"
#include "context_parallel/sinks.h"
#include "mesh/device/aten.h"

namespace meshtrain {

LocalAttention::LocalAttention(const SequenceLayout& layout, int64_t batch, const AttentionRule& rule,
                               const KernelCallOptions& options)
    : rule_(rule) {
  if (layout.ranks() != 1) throw std::invalid_argument("local attention: the layout has several ranks");
  calls_ = hop_calls(layout, batch, /*source=*/0, options);
}

AttentionCall::Forward LocalAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  RunningAttention running(q, rule_);
  for (const KernelCall& call : calls_->calls) running.add(call, k, v);
  const AttentionResult attended = running.finish();
  return {attended.out, {q, k, v, attended.out, attended.lse}};
}

AttentionGradients LocalAttention::backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
  const AttentionResult attended{saved[3], saved[4]};
  const at::Tensor sinks = sinks_gradient(grad_out, attended, rule_.sinks);
  const auto computed = [&](const KernelCall& call) {
    return std::move(attend_backward(call, grad_out, q, k, v, attended, rule_).front());
  };
  if (calls_->calls.size() == 1 && calls_->calls.front().blocks.front().num_tiles == 1) {
    const AttentionGradients all = computed(calls_->calls.front());
    return {all.q.to(q.scalar_type()), all.k.to(k.scalar_type()), all.v.to(v.scalar_type()), sinks};
  }

  const auto tiled = [](const KernelCall& call) {
    return !call.blocks.front().causal() || call.blocks.front().num_tiles > 1;
  };
  if (std::ranges::any_of(calls_->calls, tiled)) {  // keys are in several calls
    RunningGradients running(grad_out, q, attended, rule_);
    const KeyValues keys = KeyValues::zeros(k.size(2), k, attended.lse.scalar_type());
    for (const KernelCall& call : calls_->calls) running.add(call, k, v, keys.keys(), keys.values());
    return {running.queries(), keys.keys().to(k.scalar_type()), keys.values().to(v.scalar_type()), sinks};
  }
  AttentionGradients all{empty_by_position(q), empty_by_position(k), empty_by_position(v), sinks};
  for (const KernelCall& call : calls_->calls) {
    const ScoreBlock& block = call.blocks.front();
    const AttentionGradients gradients = computed(call);
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
