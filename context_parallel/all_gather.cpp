#include "context_parallel/all_gather.h"

#include "context_parallel/block_attention.h"
#include "context_parallel/key_value_wire.h"
#include "context_parallel/sinks.h"
#include "mesh/device/aten.h"

namespace meshtrain {

AttentionCall::Forward AllGatherAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  KeyValueGather gather(k, v, layout_, group_);
  RunningAttention running(q, rule_);
  const std::vector<KernelCall>& calls = calls_->calls;
  for (size_t i = 0; i < calls_->num_diagonals; ++i) running.add(calls[i], k, v);
  const KeyValues all = gather.wait();
  for (size_t i = calls_->num_diagonals; i < calls.size(); ++i) running.add(calls[i], all.keys(), all.values());
  const AttentionResult attended = running.finish();
  return {attended.out, {q, k, v, attended.out, attended.lse}};
}

AttentionGradients AllGatherAttention::backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
  const AttentionResult attended{saved[3], saved[4]};
  const at::ScalarType dtype = attended.lse.scalar_type();
  RunningGradients running(grad_out, q, attended, rule_);
  const KeyValues own = KeyValues::zeros(k.size(2), k, dtype);
  const std::vector<KernelCall>& calls = calls_->calls;
  const auto compute_diagonals = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) running.add(calls[i], k, v, own.keys(), own.values());
  };

  // Half of the diagonals overlap with the gather of keys, the others with the reduce-scatter of gradients.
  const size_t half = calls_->num_diagonals / 2;
  KeyValueGradients others(k, dtype, layout_);
  {
    KeyValueGather gather(k, v, layout_, group_);
    compute_diagonals(0, half);
    const KeyValues all = gather.wait();
    for (size_t i = calls_->num_diagonals; i < calls.size(); ++i) {
      const std::vector<AttentionGradients> gradients = running.compute(calls[i], all.keys(), all.values());
      for (size_t part = 0; part < gradients.size(); ++part) {
        const ScoreBlock& block = calls[i].blocks[part];
        others.add(block.first_row, block.key, gradients[part].k, gradients[part].v);
      }
    }
  }
  others.send(group_);
  compute_diagonals(half, calls_->num_diagonals);
  const at::Tensor sinks = sinks_gradient(grad_out, attended, rule_.sinks);
  own.packed.add_(others.wait().packed);
  return {running.queries(), own.keys().to(k.scalar_type()), own.values().to(v.scalar_type()), sinks};
}

}  // namespace meshtrain
