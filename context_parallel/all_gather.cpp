#include "context_parallel/all_gather.h"

#include <ATen/ATen.h>

#include "context_parallel/block_attention.h"
#include "context_parallel/key_value_wire.h"

namespace meshtrain {

AttentionCall::Forward AllGatherAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  KeyValueGather gather(k, v, layout_, group_);
  RunningAttention running(q, scale_);
  for (const Block& block : plan_.diagonals) running.add(block, k, v);
  const KeyValues all = gather.wait();
  for (const Block& block : plan_.rectangles) running.add(block, all.keys(), all.values());
  const Attended attended = running.finish();
  return {attended.out, {q, k, v, attended.out, attended.lse}};
}

AttentionGradients AllGatherAttention::backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) {
  const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
  const Attended attended{saved[3], saved[4]};
  const at::ScalarType dtype = attended.lse.scalar_type();
  RunningGradients running(grad_out, q, attended, scale_);
  const KeyValues own = KeyValues::zeros(k.size(2), k, dtype);
  const auto compute_diagonals = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) running.add(plan_.diagonals[i], k, v, own.keys(), own.values());
  };

  // Half of the diagonals compute while keys come, the rest while gradients go.
  const size_t half = plan_.diagonals.size() / 2;
  KeyValueGradients others(k, dtype, layout_);
  {
    KeyValueGather gather(k, v, layout_, group_);
    compute_diagonals(0, half);
    const KeyValues all = gather.wait();
    for (const Block& block : plan_.rectangles) {
      const AttentionGradients gradients = running.compute(block, all.keys(), all.values());
      others.add(block.first_row, block.key, gradients.k, gradients.v);
    }
  }
  others.send(group_);
  compute_diagonals(half, plan_.diagonals.size());
  own.packed.add_(others.wait().packed);
  return {running.queries(), own.keys().to(k.scalar_type()), own.values().to(v.scalar_type())};
}

}  // namespace meshtrain
