#pragma once

#include "context_parallel/attention_call.h"
#include "context_parallel/local.h"
#include "context_parallel/sequence_layout.h"
#include "mesh/group.h"

namespace meshtrain {

/// How often each KV head must be there for `ranks` ranks to share the KV heads out evenly: c / gcd(c, K), 1 where c
/// divides them.
int64_t kv_head_repeats(int64_t num_kv_heads, int64_t ranks);

/// Ulysses (Jacobs et al., "DeepSpeed Ulysses", 2023): an all-to-all gives each rank H / c heads of the whole sequence,
/// another brings the output back. KV heads are repeated only as far as c asks for, R = kv_head_repeats(). Both
/// layouts; with zig-zag the positions are put in order on the way. H must be a multiple of c: std::invalid_argument.
///
/// Forward: one all-to-all of q, k and v, one of the output. Backward: one of the output's gradient, one of those of q,
/// k and v, or two: gradients of repeated KV heads travel in fp32 (fp64 for fp64) and are summed where they arrive.
class UlyssesAttention final : public AttentionCall {
 public:
  UlyssesAttention(const SequenceLayout& layout, const Group& group, int64_t batch, int64_t num_heads,
                   int64_t num_kv_heads, double scale, const Packing& packing);

  Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) override;
  AttentionGradients backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) override;

 private:
  SequenceLayout layout_;
  Group group_;
  int64_t repeats_;
  LocalAttention local_;
};

}  // namespace meshtrain
