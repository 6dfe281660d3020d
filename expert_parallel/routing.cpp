#include "expert_parallel/routing.h"

#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

constexpr double kSmallestSum = 1e-20;  // DeepSeek-V3's: sigmoid scores may all be zero

at::Tensor widened(const at::Tensor& logits) {
  return logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

void require(bool fits, const std::string& what) {
  if (!fits) throw std::invalid_argument("router: " + what);
}

void check(const Router& router, const at::Tensor& logits, const at::Tensor& bias, const at::Tensor& replayed) {
  const int64_t experts = router.num_experts, groups = router.num_groups;
  require(logits.dim() == 2 && logits.size(1) == experts, "logits must have a column for each expert");
  require(groups >= 1 && experts % groups == 0, "experts must be divided into groups of equal size");
  require(groups == 1 || experts / groups >= 2, "a group must have two experts or more");
  require(router.chosen_groups >= 1 && router.chosen_groups <= groups,
          "chosen_groups must be from 1 to the number of groups");
  require(router.top_k >= 1 && router.top_k <= router.chosen_groups * (experts / groups),
          "top_k must be from 1 to the number of experts in the chosen groups");
  require(!bias.defined() || (bias.dim() == 1 && bias.size(0) == experts),
          "the bias must have a value for each expert");
  require(!replayed.defined() || (replayed.dim() == 2 && replayed.size(0) == logits.size(0) &&
                                  replayed.size(1) == router.top_k && replayed.scalar_type() == at::kLong),
          "replayed choices must be int64 and have a row for each token, a column for each slot");
}

/// Returns `scores` with those outside the best groups lowered to -infinity.
at::Tensor of_best_groups(const Router& router, const at::Tensor& scores) {
  const int64_t tokens = scores.size(0), groups = router.num_groups;
  const at::Tensor grouped = scores.view({tokens, groups, router.num_experts / groups});
  const at::Tensor sums = std::get<0>(grouped.topk(2, -1)).sum(-1);
  const at::Tensor best = std::get<1>(sums.topk(router.chosen_groups, -1));
  const at::Tensor left_out = at::ones_like(sums, at::kBool).scatter_(1, best, false);
  return grouped.masked_fill(left_out.unsqueeze(-1), -std::numeric_limits<double>::infinity()).view(scores.sizes());
}

/// Chooses experts by scores [T, E], which are not recorded.
at::Tensor chosen(const Router& router, at::Tensor scores, const at::Tensor& bias) {
  const at::NoGradGuard no_grad;
  if (bias.defined()) scores = scores + bias;
  if (router.chosen_groups < router.num_groups) scores = of_best_groups(router, scores);
  return std::get<1>(scores.topk(router.top_k, -1, /*largest=*/true, /*sorted=*/true));
}

}  // namespace

Routing route(const Router& router, const at::Tensor& logits, const at::Tensor& selection_bias,
              const at::Tensor& replayed) {
  check(router, logits, selection_bias, replayed);
  at::Tensor scores = widened(logits);
  if (router.score == RouterScore::Softmax) scores = scores.softmax(-1);
  if (router.score == RouterScore::Sigmoid) scores = scores.sigmoid();

  Routing routing;
  routing.choices = replayed.defined() ? replayed : chosen(router, scores.detach(), selection_bias);
  at::Tensor weights = scores.gather(1, routing.choices);
  if (router.score == RouterScore::SoftmaxOfChosen) {
    weights = weights.softmax(-1);
  } else if (router.normalises) {
    const at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
    weights = weights / (router.score == RouterScore::Sigmoid ? sum + kSmallestSum : sum);
  }
  if (router.weight_scale != 1) weights = weights * router.weight_scale;
  routing.weights = router.rounds_weights ? weights.to(logits.scalar_type()) : weights;
  return routing;
}

at::Tensor router_probabilities(const Router& router, const at::Tensor& logits) {
  if (router.score != RouterScore::Sigmoid) return widened(logits).softmax(-1);
  const at::Tensor scores = widened(logits).sigmoid();
  return scores / (scores.sum(-1, /*keepdim=*/true) + kSmallestSum);
}

}  // namespace meshtrain
