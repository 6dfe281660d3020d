#pragma once

#include "context_parallel/attention_call.h"
#include "context_parallel/kernel_calls.h"
#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// Attention with all keys and values gathered on every rank: one all-gather in the forward; one more and one
/// reduce-scatter in the backward, because a rank keeps only its own part. Diagonals need only local keys and compute
/// during the communication.
class AllGatherAttention final : public AttentionCall {
 public:
  AllGatherAttention(const SequenceLayout& layout, const Group& group, int64_t batch, const AttentionRule& rule,
                     const KernelCallOptions& options)
      : layout_(layout), group_(group), rule_(rule), calls_(all_keys_calls(layout, batch, options)) {}

  Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;
  AttentionGradients backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) override;

 private:
  SequenceLayout layout_;
  Group group_;
  AttentionRule rule_;
  std::shared_ptr<const KernelCalls> calls_;
};

}  // namespace meshtrain
