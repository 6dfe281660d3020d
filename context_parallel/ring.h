#pragma once

#include "context_parallel/attention_call.h"
#include "context_parallel/attention_plan.h"
#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// Ring attention (Liu et al., "Ring Attention with Blockwise Transformers", 2023): keys and values go round the ranks,
/// each hop while the blocks of the one before compute. What does not count is not computed.
///
/// Forward: c - 1 hops of local keys and values. Backward: the same hops again, and their gradients follow one hop
/// behind, summed on the way in fp32 (fp64 for fp64), until they are home: c - 1 hops as well, because a rank's share
/// of its own never leaves it. Half of the own blocks compute while the last gradients come home.
class RingAttention final : public AttentionCall {
 public:
  RingAttention(const SequenceLayout& layout, const Group& group, int64_t batch, double scale, const Packing& packing);

  Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;
  AttentionGradients backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) override;

 private:
  Group group_;
  double scale_;
  std::vector<std::shared_ptr<const AttentionPlan>> hops_;  // what is computed with the keys that h hops brought here
};

}  // namespace meshtrain
