// Which pairs a capacity drops, and what the layer computes without them.

#include "expert_parallel/capacity.h"

#include <gtest/gtest.h>

#include "expert_parallel/expert_rows.h"
#include "expert_parallel/router_pass.h"
#include "tests/expert_parallel/naive.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kCapped = 6, kCappedSlots = 2, kCappedTokens = 64;

at::Tensor all_choices() {
  const at::Tensor scores = random_tensor({kCappedTokens, kCapped}, 9) + at::arange(kCapped, at::kDouble) * 0.3;
  return std::get<1>(scores.topk(kCappedSlots, -1));
}

/// Returns the pairs after the first `capacity` of their experts, token by token.
at::Tensor dropped_by_loops(const at::Tensor& choices, int64_t capacity) {
  at::Tensor beyond = at::zeros(choices.sizes(), at::kBool);
  std::vector<int64_t> taken(kCapped, 0);
  for (int64_t token = 0; token < choices.size(0); ++token) {
    for (int64_t slot = 0; slot < choices.size(1); ++slot) {
      const auto expert = static_cast<size_t>(choices[token][slot].item<int64_t>());
      if (++taken[expert] > capacity) beyond[token][slot] = true;
    }
  }
  return beyond;
}

TEST(Capacity, DropsThoseThatComeLastInTheMicroBatch) {
  EXPECT_EQ(expert_capacity(1, kCappedTokens, kCappedSlots, kCapped), 22);
  EXPECT_EQ(expert_capacity(0.5, kCappedTokens, kCappedSlots, kCapped), 11);
  const at::Tensor choices = all_choices();
  const int64_t n = world().size();
  // Rank r has tokens r, r + n, ... in descending order: positions, not ranks, are the order.
  const at::Tensor positions = at::arange(kCappedTokens / n - 1, -1, -1, at::kLong) * n + world().rank();
  const at::Tensor own = choices.index_select(0, positions);
  for (const int64_t capacity : {int64_t{1}, int64_t{11}, int64_t{22}, kCappedTokens}) {
    const at::Tensor beyond = pairs_beyond(capacity, own, positions, kCappedTokens, kCapped, world()),
                     expected = dropped_by_loops(choices, capacity);
    EXPECT_TRUE(at::equal(beyond, expected.index_select(0, positions))) << capacity;
    EXPECT_EQ(expected.any().item<bool>(), capacity < kCappedTokens);
  }
}

/// The layer and its gradients are those of all pairs with the weight 0 for dropped ones, which get no gradient.
TEST(Capacity, LeavesDroppedPairsOut) {
  for (const int64_t capacity : {int64_t{0}, int64_t{4}}) {
    ExpertCase shape = random_case();
    const at::Tensor dropped = dropped_by_loops(shape.choices, capacity);
    const ExpertInputs inputs(shape, at::kDouble, at::kDouble);
    ExpertInputs exact(shape, at::kDouble, at::kDouble);
    const at::Tensor weights = exact.weights;
    exact.weights = weights.masked_fill(dropped, 0);
    const at::Tensor expected = by_definition(shape, exact);
    shape.choices = shape.choices.masked_fill(dropped, shape.num_experts);
    const ExpertRows rows = sort_by_expert(shape.choices, shape.num_experts);
    EXPECT_EQ(rows.tokens.numel(), dropped.logical_not().sum().item<int64_t>());
    const at::Tensor y = by_mixture(shape, inputs), dy = random_tensor({shape.tokens, shape.width}, 50);
    EXPECT_LE((y - expected).abs().max().item<double>(), 1e-12);
    y.backward(dy);
    expected.backward(dy);
    exact.weights = weights;
    const std::vector<at::Tensor> own = inputs.leaves(), wanted = exact.leaves();
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_LE((own[i].grad() - wanted[i].grad()).abs().max().item<double>(), 1e-12) << "leaf " << i;
    }
  }
}

TEST(Capacity, OfARecomputedLayerIsThatOfItsFirstForward) {
  const int64_t own = kCappedTokens / world().size();
  const at::Tensor numbers =
      at::arange(own, at::kLong) + own * world().rank() + 3 * kCappedTokens;  // of the fourth batch
  const RouterTokens tokens = {4, kCappedTokens / 4, numbers.remainder(kCappedTokens).div(kCappedTokens / 4, "floor"),
                               world(), numbers};
  const Router router = {.num_experts = kCapped, .top_k = kCappedSlots};
  const at::Tensor logits = (random_tensor({kCappedTokens, kCapped}, 9) + at::arange(kCapped, at::kDouble))
                                .narrow(0, own * world().rank(), own);
  const auto pass = std::make_shared<RouterPass>(BalancingOptions{.capacity_factor = 1}, tokens, at::ones({}), 2);
  const Routing first = pass->route_tokens(1, router, logits);
  EXPECT_TRUE(at::equal(first.computed(kCapped).eq(kCapped), first.dropped));
  at::Tensor all = pass->num_dropped(1);
  world().all_reduce(all).wait();
  EXPECT_GT(all.item<int64_t>(), 0);
  EXPECT_FALSE(pass->num_dropped(0).defined());
  if (world().rank() == 0) {  // the others would have to call it too
    EXPECT_TRUE(at::equal(pass->route_tokens(1, router, logits).dropped, first.dropped));
  }
  EXPECT_EQ(pass->counts(1).sum().item<int64_t>(), own * kCappedSlots) << "counts are those of all choices";
}

}  // namespace
}  // namespace meshtrain::testing
