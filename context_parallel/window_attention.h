#pragma once

#include <vector>

#include "context_parallel/attention_call.h"
#include "context_parallel/kernel_calls.h"
#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// Attention inside a window, for Ring and AllGather: each rank sends the keys and values that the queries of another
/// rank see directly to that rank, and nothing else. Only hops within the window take place: with contiguous parts of s
/// positions ceil((window - 1) / s) of them, with zig-zag chunks those to both neighbours.
///
/// Forward: an all-to-all for each hop, under way while the blocks of the hop before compute; with `at_once` a single
/// one for all hops, while the rank's own blocks compute. Backward: the same again, and for each of them one more that
/// returns the gradients in fp32 (fp64 for fp64), the last beside half of the rank's own blocks.
class WindowAttention final : public AttentionCall {
 public:
  /// rule.window: from 1 to the sequence length - 1, the same on every rank.
  WindowAttention(const SequenceLayout& layout, const Group& group, int64_t batch, const AttentionRule& rule,
                  const KernelCallOptions& options, bool at_once);

  Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;
  AttentionGradients backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) override;

 private:
  /// The keys of one rank in what a message brings: positions [first, first + count), and the work with them.
  struct Source {
    int64_t first, count;
    std::shared_ptr<const KernelCalls> calls;
  };
  /// One all-to-all. Received positions are ordered by their rank, and in its local order.
  struct Message {
    std::vector<int64_t> sent, received;           // numbers of positions, by rank
    std::vector<SequenceLayout::Chunk> positions;  // local positions that are sent, by receiving rank
    std::vector<Source> sources;
  };
  class Keys;

  Message message_of(const SequenceLayout& layout, int64_t batch, const KernelCallOptions& options,
                     const std::vector<int>& hops) const;

  Group group_;
  AttentionRule rule_;
  std::shared_ptr<const KernelCalls> own_;
  std::vector<Message> messages_;
};

}  // namespace meshtrain
