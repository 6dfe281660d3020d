#pragma once

#include "context_parallel/attention_call.h"
#include "context_parallel/kernel_calls.h"
#include "context_parallel/sequence_layout.h"

namespace meshtrain {

/// Attention of complete sequences on one rank. Without documents or with packed ones it is one kernel call each in
/// forward and backward; otherwise one call for each document (of rows with the same documents). A window that the
/// kernel does not have adds calls: for all tiles of a document two, for the last four more (tiled() of blocks.h).
/// Nothing is communicated, and without documents and such a window nothing is copied. `batch`: rows. Throws
/// std::invalid_argument when the layout has several ranks, or documents for another number of rows.
class LocalAttention final : public AttentionCall {
 public:
  LocalAttention(const SequenceLayout& layout, int64_t batch, const AttentionRule& rule,
                 const KernelCallOptions& options);

  Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;
  AttentionGradients backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) override;

 private:
  std::shared_ptr<const KernelCalls> calls_;  // diagonals: each query is in one
  AttentionRule rule_;
};

}  // namespace meshtrain
