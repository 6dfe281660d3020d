#include "context_parallel/ulysses.h"

#include <numeric>
#include <stdexcept>
#include <string>

#include "context_parallel/head_exchange.h"
#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"

namespace meshtrain {

int64_t kv_head_repeats(int64_t num_kv_heads, int64_t ranks) {
  return ranks / std::gcd(num_kv_heads, ranks);
}

namespace {

/// Returns the rule of this rank's heads.
AttentionRule rule_of_heads(AttentionRule rule, const Group& group) {
  if (!rule.sinks.defined()) return rule;
  const int64_t heads = rule.sinks.size(0) / group.size();
  rule.sinks = rule.sinks.narrow(0, group.rank() * heads, heads);
  return rule;
}

}  // namespace

UlyssesAttention::UlyssesAttention(const SequenceLayout& layout, const Group& group, int64_t batch, int64_t num_heads,
                                   int64_t num_kv_heads, const AttentionRule& rule, const KernelCallOptions& options)
    : layout_(layout),
      group_(group),
      repeats_(kv_head_repeats(num_kv_heads, group.size())),
      local_(layout.undistributed(), batch, rule_of_heads(rule, group), options) {
  if (num_heads % group.size() != 0) {
    throw RankError<std::invalid_argument>(group.coordinate_text() + ": Ulysses attention over group " + group.name() +
                                           " of " + std::to_string(group.size()) + " ranks: they cannot divide " +
                                           counted(num_heads, "query head") + " evenly");
  }
}

AttentionCall::Forward UlyssesAttention::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto repeated = [&](const at::Tensor& x) { return repeats_ == 1 ? x : x.repeat_interleave(repeats_, 1); };
  const std::vector<at::Tensor> heads = sequence_to_heads({q, repeated(k), repeated(v)}, layout_, group_);
  Forward local = local_.forward(heads[0], heads[1], heads[2]);
  return {heads_to_sequence({local.out}, layout_, group_)[0], std::move(local.saved)};
}

AttentionGradients UlyssesAttention::backward(const at::Tensor& grad_out, const std::vector<at::Tensor>& saved) {
  const at::Tensor grad = sequence_to_heads({grad_out}, layout_, group_)[0];
  const AttentionGradients local = local_.backward(grad, saved);
  const auto of_all_heads = [&](const at::Tensor& sinks) {  // zero for the heads of other ranks
    if (!sinks.defined()) return sinks;
    at::Tensor all = at::zeros({sinks.size(0) * group_.size()}, sinks.options());
    all.narrow(0, group_.rank() * sinks.size(0), sinks.size(0)).copy_(sinks);
    return all;
  };
  if (repeats_ == 1) {
    const std::vector<at::Tensor> all = heads_to_sequence({local.q, local.k, local.v}, layout_, group_);
    return {all[0], all[1], all[2], of_all_heads(local.sinks)};
  }
  const at::ScalarType dtype = local.q.scalar_type(), wide = accumulation_dtype(dtype);
  const at::Tensor q = heads_to_sequence({local.q}, layout_, group_)[0];
  const std::vector<at::Tensor> repeated = heads_to_sequence({local.k.to(wide), local.v.to(wide)}, layout_, group_);
  const auto summed = [&](const at::Tensor& x) {  // sums over the repetitions of each KV head
    return x.transpose(1, 2).unflatten(2, {-1, repeats_}).sum(3).to(dtype).transpose(1, 2);
  };
  return {q, summed(repeated[0]), summed(repeated[1]), of_all_heads(local.sinks)};
}

}  // namespace meshtrain
