#include "context_parallel/sinks.h"

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// Returns the scores for log-sum-exps [B, H, n].
at::Tensor sink_scores(const at::Tensor& sinks, const at::Tensor& lse) {
  return sinks.detach().to(lse.scalar_type()).view({1, -1, 1});
}

}  // namespace

void add_sinks(const AttentionResult& attended, const at::Tensor& sinks) {
  at::Tensor out = attended.out, lse = attended.lse;
  const at::Tensor scores = sink_scores(sinks, lse);
  out.mul_(at::sigmoid(lse - scores).unsqueeze_(3));
  at::logaddexp_out(lse, lse, scores);
}

at::Tensor sinks_gradient(const at::Tensor& grad_out, const AttentionResult& attended, const at::Tensor& sinks) {
  if (!sinks.defined() || !sinks.requires_grad()) return {};
  const at::ScalarType wide = attended.lse.scalar_type();
  const at::Tensor products =
      grad_out.scalar_type() == wide ? grad_out * attended.out : grad_out.to(wide).mul_(attended.out);
  const at::Tensor shares = (sink_scores(sinks, attended.lse) - attended.lse).exp_();
  return products.sum(3).mul_(shares).sum(at::IntArrayRef{0, 2}).neg_().to(sinks.scalar_type());
}

}  // namespace meshtrain
