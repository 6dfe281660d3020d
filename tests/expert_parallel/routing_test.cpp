#include "expert_parallel/routing.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

at::Tensor row(std::vector<double> values) {
  return at::tensor(values, at::kDouble).unsqueeze(0);
}

std::vector<int64_t> experts_of(const Routing& routing, int64_t token = 0) {
  const at::Tensor own = routing.choices[token].contiguous();
  return {own.const_data_ptr<int64_t>(), own.const_data_ptr<int64_t>() + own.numel()};
}

double weight(const Routing& routing, int64_t slot) {
  return routing.weights[0][slot].item<double>();
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

TEST(Routing, BySoftmaxOfAllTakesTheLargestProbabilities) {
  const at::Tensor logits = row({1, 3, -2, 2});
  const double sum = std::exp(1) + std::exp(3) + std::exp(-2) + std::exp(2);
  Router router{.num_experts = 4, .top_k = 2};
  const Routing plain = route(router, logits);
  EXPECT_EQ(experts_of(plain), (std::vector<int64_t>{1, 3}));
  EXPECT_NEAR(weight(plain, 0), std::exp(3) / sum, 1e-14);
  EXPECT_NEAR(weight(plain, 1), std::exp(2) / sum, 1e-14);
  router.normalises = true;
  router.weight_scale = 2.5;
  const Routing normal = route(router, logits);
  EXPECT_NEAR(weight(normal, 0), 2.5 * std::exp(3) / (std::exp(3) + std::exp(2)), 1e-14);
}

TEST(Routing, BySoftmaxOfChosenLeavesOthersOut) {
  const Router router{.score = RouterScore::SoftmaxOfChosen, .num_experts = 4, .top_k = 2};
  const Routing routing = route(router, row({1, 3, -2, 2}));
  EXPECT_EQ(experts_of(routing), (std::vector<int64_t>{1, 3}));
  EXPECT_NEAR(weight(routing, 0), std::exp(3) / (std::exp(3) + std::exp(2)), 1e-14);
}

TEST(Routing, ByBiasChoosesWithItAndWeighsWithoutIt) {
  const Router router{.score = RouterScore::Sigmoid, .num_experts = 4, .top_k = 2, .normalises = true};
  const Routing routing = route(router, row({1, 3, -2, 2}), at::tensor({0.0, 0.0, 2.0, 0.0}, at::kFloat));
  EXPECT_EQ(experts_of(routing), (std::vector<int64_t>{2, 1}));
  EXPECT_NEAR(weight(routing, 0), sigmoid(-2) / (sigmoid(-2) + sigmoid(3)), 1e-14);
}

TEST(Routing, TakesExpertsOfTheGroupsWithTheLargestSumsOfTwo) {
  Router router{.score = RouterScore::Sigmoid, .num_experts = 6, .top_k = 2, .num_groups = 2, .chosen_groups = 1};
  // The first group has the best expert, the second the best two and the best three.
  const at::Tensor logits = row({4, -4, -4, 1, 2, -9});
  EXPECT_EQ(experts_of(route(router, logits)), (std::vector<int64_t>{4, 3}));
  const at::Tensor bias = at::tensor({0.0, 1.5, 0.0, 0.0, 0.0, 0.0}, at::kFloat);
  EXPECT_EQ(experts_of(route(router, logits, bias)), (std::vector<int64_t>{1, 0}));
  router.chosen_groups = 2;
  EXPECT_EQ(experts_of(route(router, logits)), (std::vector<int64_t>{0, 4}));
}

TEST(Routing, TakesReplayedChoicesWithItsOwnWeights) {
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::SoftmaxOfChosen, RouterScore::Sigmoid}) {
    const Router router{.score = score, .num_experts = 4, .top_k = 2, .normalises = score == RouterScore::Softmax};
    const at::Tensor replayed = at::tensor({0, 2}, at::kLong).view({1, 2});
    const Routing routing = route(router, row({1, 3, -2, 2}), {}, replayed);
    EXPECT_EQ(experts_of(routing), (std::vector<int64_t>{0, 2}));
    EXPECT_NEAR(weight(routing, 0),
                score == RouterScore::Sigmoid ? sigmoid(1) : std::exp(1) / (std::exp(1) + std::exp(-2)), 1e-14);
  }
}

TEST(Routing, ScoresHalvesInFp32AndRoundsWeightsIfAsked) {
  const at::Tensor logits = random_tensor({50, 8}, 1).to(at::kBFloat16);
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::SoftmaxOfChosen, RouterScore::Sigmoid}) {
    Router router{.score = score, .num_experts = 8, .top_k = 3};
    const Routing wide = route(router, logits), exact = route(router, logits.to(at::kDouble));
    EXPECT_EQ(wide.weights.scalar_type(), at::kFloat);
    EXPECT_EQ(exact.weights.scalar_type(), at::kDouble);
    EXPECT_LE(relative_error(wide.weights, exact.weights), 1e-6);
    router.rounds_weights = true;
    const Routing rounded = route(router, logits);
    EXPECT_TRUE(at::equal(rounded.weights, wide.weights.to(at::kBFloat16)));
    EXPECT_TRUE(at::equal(rounded.choices, wide.choices));
  }
}

TEST(Routing, OfATokenDependsOnNoOther) {
  const at::Tensor logits = random_tensor({64, 16}, 2).to(at::kBFloat16);  // with ties
  const Router router{.num_experts = 16, .top_k = 4, .num_groups = 4, .chosen_groups = 2};
  const Routing all = route(router, logits);
  for (int64_t token = 0; token < 64; ++token) {
    const Routing alone = route(router, logits.narrow(0, token, 1));
    EXPECT_EQ(experts_of(alone), experts_of(all, token));
    EXPECT_TRUE(at::equal(alone.weights[0], all.weights[token]));
  }
}

TEST(Routing, GivesLogitsTheGradientOfTheWeights) {
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::SoftmaxOfChosen, RouterScore::Sigmoid}) {
    const Router router{.score = score, .num_experts = 5, .top_k = 2, .normalises = score == RouterScore::Sigmoid};
    const at::Tensor logits = random_tensor({3, 5}, 3).requires_grad_(), dy = random_tensor({3, 2}, 4);
    const Routing routing = route(router, logits);
    const at::Tensor found = torch::autograd::grad({routing.weights}, {logits}, {dy})[0];
    constexpr double kStep = 1e-6;
    for (int64_t i = 0; i < logits.numel(); ++i) {
      const auto moved = [&](double step) {
        const at::Tensor other = logits.detach().clone();
        other.flatten()[i] += step;
        return (route(router, other, {}, routing.choices).weights * dy).sum().item<double>();
      };
      EXPECT_NEAR(found.flatten()[i].item<double>(), (moved(kStep) - moved(-kStep)) / (2 * kStep), 1e-8);
    }
  }
}

TEST(Routing, RefusesNumbersThatDoNotFit) {
  const at::Tensor logits = at::zeros({2, 6});
  const Router good{.num_experts = 6, .top_k = 2};
  const auto refuses = [&](auto change) {
    Router router = good;
    change(router);
    EXPECT_THROW(route(router, logits), std::invalid_argument);
  };
  refuses([](Router& router) { router.num_experts = 5; });
  refuses([](Router& router) { router.top_k = 7; });
  refuses([](Router& router) { router.num_groups = 4; });
  refuses([](Router& router) { router.num_groups = 6; });
  refuses([](Router& router) { router.num_groups = 3, router.chosen_groups = 4; });
  refuses([](Router& router) { router.num_groups = 3, router.top_k = 3; });
  EXPECT_THROW(route(good, logits, at::zeros({5})), std::invalid_argument);
  EXPECT_THROW(route(good, logits, {}, at::zeros({2, 3}, at::kLong)), std::invalid_argument);
}

TEST(Routing, HasItsShapesOnTheMetaDevice) {
  const at::TensorOptions meta = at::TensorOptions(at::kBFloat16).device(at::kMeta);
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::SoftmaxOfChosen, RouterScore::Sigmoid}) {
    const Router router{.score = score,
                        .num_experts = 8,
                        .top_k = 2,
                        .normalises = true,
                        .weight_scale = 2,
                        .rounds_weights = true,
                        .num_groups = 4,
                        .chosen_groups = 2};
    const at::Tensor logits = at::empty({6, 8}, meta).requires_grad_();
    const Routing routing = route(router, logits, at::empty({8}, meta.dtype(at::kFloat)));
    EXPECT_EQ(routing.choices.sizes(), at::IntArrayRef({6, 2}));
    EXPECT_EQ(routing.choices.scalar_type(), at::kLong);
    EXPECT_EQ(routing.weights.scalar_type(), at::kBFloat16);
    (routing.weights.sum() + router_probabilities(router, logits).sum()).backward();
    EXPECT_EQ(logits.grad().sizes(), logits.sizes());
  }
}

TEST(RouterProbabilities, AddUpToOne) {
  const at::Tensor logits = row({1, 3, -2, 2});
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::SoftmaxOfChosen, RouterScore::Sigmoid}) {
    const at::Tensor found = router_probabilities({.score = score, .num_experts = 4, .top_k = 2}, logits);
    EXPECT_NEAR(found.sum().item<double>(), 1, 1e-14);
    const double first = score == RouterScore::Sigmoid
                             ? sigmoid(1) / (sigmoid(1) + sigmoid(3) + sigmoid(-2) + sigmoid(2))
                             : logits.softmax(-1)[0][0].item<double>();
    EXPECT_NEAR(found[0][0].item<double>(), first, 1e-14);
  }
}

}  // namespace
}  // namespace meshtrain::testing
