#pragma once

#include "context_parallel/attention_call.h"
#include "context_parallel/kernel_calls.h"
#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// Ring attention (Liu et al., "Ring Attention with Blockwise Transformers", 2023). Keys and values travel round the
/// ranks; each hop overlaps with the blocks of the previous one. Pairs that do not count are not computed.
///
/// Forward: c - 1 hops of local keys and values. Backward: the same hops again. Their gradients follow one hop later
/// and are summed on the way in fp32 (fp64 for fp64) until they return to their rank: c - 1 hops as well, because a
/// rank's share of its own keys never leaves it. Half of the rank's own blocks compute during the last hop of the
/// gradients.
class RingAttention final : public AttentionCall {
 public:
  RingAttention(const SequenceLayout& layout, const Group& group, int64_t batch, const AttentionRule& rule,
                const KernelCallOptions& options);

  Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;
  AttentionGradients backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) override;

 private:
  Group group_;
  AttentionRule rule_;
  std::vector<std::shared_ptr<const KernelCalls>> hops_;  // calls for the keys that arrive after h hops
};

}  // namespace meshtrain
