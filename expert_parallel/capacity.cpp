#include "expert_parallel/capacity.h"

#include <cmath>

#include "expert_parallel/row_arithmetic.h"
#include "mesh/device/aten.h"

namespace meshtrain {

int64_t expert_capacity(double factor, int64_t tokens, int64_t top_k, int64_t num_experts) {
  const double balanced = static_cast<double>(top_k * tokens) / static_cast<double>(num_experts);
  return static_cast<int64_t>(std::ceil(factor * balanced));
}

at::Tensor pairs_beyond(int64_t capacity, const at::Tensor& choices, const at::Tensor& positions, int64_t num_tokens,
                        int64_t num_experts, const Group& sharers) {
  const at::NoGradGuard no_grad;
  const int64_t num_slots = choices.size(1);
  at::Tensor all = at::zeros({num_tokens, num_slots}, choices.options());
  if (!choices.is_meta()) all.index_copy_(0, positions, choices);
  sharers.with_purpose("router_choices").all_reduce(all).wait();
  if (choices.is_meta()) return {};
  const auto [experts, pairs] = all.flatten().sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor counts =
      at::zeros({num_experts}, choices.options()).scatter_add_(0, experts, at::ones_like(experts));
  const at::Tensor nth = at::arange(experts.numel(), choices.options()) - rows_at(counts.cumsum(0) - counts, experts);
  const at::Tensor beyond = at::empty_like(nth, at::kBool).scatter_(0, pairs, nth.ge(capacity)).view(all.sizes());
  return rows_at(beyond, positions);
}

}  // namespace meshtrain
