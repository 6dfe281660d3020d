#pragma once

#include "context_parallel/attention_call.h"
#include "context_parallel/local.h"
#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// Returns how often each KV head is repeated so that `ranks` ranks can share the KV heads evenly: c / gcd(c, K), which
/// is 1 when c divides them.
int64_t kv_head_repeats(int64_t num_kv_heads, int64_t ranks);

/// Ulysses (Jacobs et al., "DeepSpeed Ulysses", 2023): an all-to-all sends H / c heads of the complete sequence to each
/// rank, and another returns the output. KV heads are repeated only as often as c requires, R = kv_head_repeats().
/// Supports both layouts; with zig-zag the positions are sorted on the way. Throws std::invalid_argument unless H is a
/// multiple of c.
///
/// Forward: one all-to-all of q, k and v, one of the output. Backward: one of the output's gradient, and one of the
/// gradients of q, k and v, or two: gradients of repeated KV heads travel in fp32 (fp64 for fp64) and are summed on
/// arrival.
class UlyssesAttention final : public AttentionCall {
 public:
  UlyssesAttention(const SequenceLayout& layout, const Group& group, int64_t batch, int64_t num_heads,
                   int64_t num_kv_heads, const AttentionRule& rule, const KernelCallOptions& options);

  Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;
  AttentionGradients backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) override;

 private:
  SequenceLayout layout_;
  Group group_;
  int64_t repeats_;
  LocalAttention local_;
};

}  // namespace meshtrain
