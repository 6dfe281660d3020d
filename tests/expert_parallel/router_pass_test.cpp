// Balancing losses of a micro-batch: transformers' formula by autograd, on any number of ranks that share its tokens.

#include "expert_parallel/router_pass.h"

#include <gtest/gtest.h>

#include <vector>

#include "expert_parallel/balance.h"
#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kNumExperts = 6, kTopK = 2, kSequences = 3, kLength = 16, kAllTokens = kSequences * kLength,
                  kLayers = 2;
const Router kRouter = {.num_experts = kNumExperts, .top_k = kTopK, .normalises = true};

std::vector<at::Tensor> logits_of_layers() {
  return {random_tensor({kAllTokens, kNumExperts}, 1), random_tensor({kAllTokens, kNumExperts}, 2)};
}

/// Returns E sum_e (counts_e / n) (sum p_e / n) / k of some tokens, recorded.
at::Tensor formula(const at::Tensor& logits) {
  const at::Tensor p = logits.softmax(-1), choices = std::get<1>(p.topk(kTopK, -1));
  const auto n = static_cast<double>(logits.size(0));
  const at::Tensor counts =
      choices.unsqueeze(-1).eq(at::arange(kNumExperts, at::kLong)).to(at::kDouble).sum(1).sum(0) / n;
  return (counts * (p.sum(0) / n)).sum() * (static_cast<double>(kNumExperts) / kTopK);
}

/// Returns the sum over layers and sequences of the losses in `options`, with their coefficients.
at::Tensor expected(const BalancingOptions& options, const std::vector<at::Tensor>& logits) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& layer : logits) {
    sum = sum + layer.logsumexp(1).square().sum() * (options.z_loss / kLength);
    if (options.scope == BalanceScope::MicroBatch) sum = sum + formula(layer) * kSequences * options.coefficient;
    if (options.scope != BalanceScope::Sequence) continue;
    for (int64_t i = 0; i < kSequences; ++i) {
      sum = sum + formula(layer.narrow(0, i * kLength, kLength)) * options.coefficient;
    }
  }
  if (options.scope == BalanceScope::AllLayers) {
    sum = sum + formula(at::cat(logits)) * kTopK * kSequences * options.coefficient;
  }
  return sum;
}

/// This rank's part of the tokens, which the ranks of the world cut, as sequence parallel cuts them.
struct Part {
  int64_t first, count;
  RouterTokens tokens;
};

Part own_part() {
  const int64_t count = kAllTokens / world().size(), first = count * world().rank();
  return {first, count, {kSequences, kLength, (at::arange(count, at::kLong) + first).div(kLength, "floor"), world()}};
}

/// Runs the routers of all layers for this rank's tokens, each `forwards` times, and the backward of the last. Returns
/// the gradients of `logits`, which ranks add up.
std::vector<at::Tensor> gradients(RouterPass& pass, std::vector<at::Tensor> logits, int forwards) {
  const Part part = own_part();
  for (at::Tensor& layer : logits) layer = layer.clone().requires_grad_();
  at::Tensor loss = at::zeros({}, at::kDouble);
  const auto run = [&](size_t layer) {
    const at::Tensor own = logits[layer].narrow(0, part.first, part.count);
    return pass.route_tokens(static_cast<int64_t>(layer), kRouter, own).weights;
  };
  for (int i = 0; i + 1 < forwards; ++i) {
    const at::NoGradGuard no_grad;
    for (size_t layer = 0; layer < kLayers; ++layer) run(layer);
  }
  if (forwards > 1) pass.end_forward();
  for (size_t layer = 0; layer < kLayers; ++layer) loss = loss + run(layer).sum();  // 1 for each token: no gradient
  if (forwards == 1) pass.end_forward();
  loss.backward();
  std::vector<at::Tensor> all;
  for (const at::Tensor& layer : logits) {
    at::Tensor sum = layer.grad().clone();
    world().all_reduce(sum).wait();
    all.push_back(sum);
  }
  return all;
}

BalancingOptions options_of(BalanceScope scope) {
  return {.scope = scope, .coefficient = scope == BalanceScope::None ? 0 : 0.3, .z_loss = 0.05};
}

class RouterPassOf : public ::testing::TestWithParam<BalanceScope> {};

TEST_P(RouterPassOf, GivesTheGradientOfTheFormula) {
  if (kAllTokens % world().size() != 0) GTEST_SKIP() << "the ranks do not divide the tokens";
  const BalancingOptions options = options_of(GetParam());
  std::vector<at::Tensor> logits = logits_of_layers(), recorded;
  for (const at::Tensor& layer : logits) recorded.push_back(layer.clone().requires_grad_());
  const at::Tensor loss = expected(options, recorded);
  loss.backward(at::full({}, 0.5, at::kDouble));
  for (const int forwards : {1, 2}) {  // 2: recomputed
    const auto pass = std::make_shared<RouterPass>(options, own_part().tokens, at::full({}, 0.5, at::kDouble), kLayers);
    const std::vector<at::Tensor> all = gradients(*pass, logits, forwards);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_LE(relative_error(all[layer], recorded[layer].grad()), 1e-13) << forwards;
    }
    at::Tensor losses = pass->losses();
    world().all_reduce(losses).wait();
    EXPECT_NEAR((losses[0] * options.coefficient + losses[1] * options.z_loss).item<double>(), loss.item<double>(),
                1e-13);
    at::Tensor counts = at::stack({pass->counts(0), pass->counts(1)});
    world().all_reduce(counts).wait();
    EXPECT_EQ(counts.sum().item<int64_t>(), kLayers * kAllTokens * kTopK) << "a recomputed layer counts once";
  }
}

INSTANTIATE_TEST_SUITE_P(EachScope, RouterPassOf,
                         ::testing::Values(BalanceScope::None, BalanceScope::Sequence, BalanceScope::MicroBatch,
                                           BalanceScope::AllLayers));

TEST(RouterPass, ReplaysChoicesByTheNumberOfTheirToken) {
  const at::Tensor logits = logits_of_layers()[0], numbers = at::randperm(kAllTokens);
  const RouterTokens tokens{kSequences, kLength, numbers.div(kLength, "floor"), Group(), numbers};
  const auto run = [&](const at::Tensor& of, const ChoiceUse& use) {
    const auto pass = std::make_shared<RouterPass>(BalancingOptions{}, tokens, at::ones({}), 1, use);
    const Routing routing = pass->route_tokens(0, kRouter, of);
    EXPECT_TRUE(at::equal(routing.weights, route(kRouter, of, {}, routing.choices).weights));
    return std::pair{pass, routing.choices};
  };
  const auto [recorded, choices] = run(logits, {.records = true});
  EXPECT_TRUE(at::equal(recorded->choices(0), choices));
  const auto all = std::make_shared<RunChoices>();
  all->push_back(at::zeros_like(choices).index_copy_(0, numbers, choices));

  at::Tensor other = logits.clone();  // row 5 swaps its two experts, row 7 takes another
  const at::Tensor fifth = choices[5], seventh = choices[7];
  other[5][fifth[0].item<int64_t>()] = logits[5][fifth[1].item<int64_t>()];
  other[5][fifth[1].item<int64_t>()] = logits[5][fifth[0].item<int64_t>()];
  other[7][seventh[1].item<int64_t>()] = -10;
  const at::Tensor one_of_all = at::tensor({1, static_cast<int>(kAllTokens)}, at::kLong);
  const auto [compared, own] = run(other, {.reference = all});
  EXPECT_TRUE(at::equal(compared->changed(), one_of_all));
  EXPECT_FALSE(at::equal(own, choices));
  const auto [replayed, taken] = run(other, {.reference = all, .replays = true});
  EXPECT_TRUE(at::equal(replayed->changed(), one_of_all));
  EXPECT_TRUE(at::equal(taken, choices));
}

TEST(RouterPass, RunsOnTheMetaDevice) {
  const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const at::Tensor logits = at::empty({kAllTokens, kNumExperts}, meta).requires_grad_();
  const RouterTokens tokens{kSequences, kLength, at::empty({kAllTokens}, meta.dtype(at::kLong)), Group()};
  for (const BalanceScope scope : {BalanceScope::Sequence, BalanceScope::AllLayers}) {
    const auto pass = std::make_shared<RouterPass>(options_of(scope), tokens, at::empty({}, meta), 1);
    const at::Tensor weights = pass->route_tokens(0, kRouter, logits).weights;
    pass->end_forward();
    weights.sum().backward();
    EXPECT_EQ(logits.grad().sizes(), logits.sizes());
    EXPECT_EQ(pass->losses().sizes(), at::IntArrayRef({2}));
  }
}

}  // namespace
}  // namespace meshtrain::testing
