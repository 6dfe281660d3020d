#include "expert_parallel/balance.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kExperts = 4, kSlots = 2, kTokens = 12;

at::Tensor some_logits() {
  return random_tensor({kTokens, kExperts}, 1);
}

at::Tensor choices_of(const at::Tensor& logits) {
  return std::get<1>(logits.topk(kSlots, -1));
}

at::Tensor some_mask() {
  at::Tensor mask = at::ones({kTokens}, at::kBool);
  mask[2] = false;
  mask[9] = false;
  return mask;
}

double value(const at::Tensor& scalar) {
  return scalar.item<double>();
}

/// Computes E / (k n^2) sum_e count_e P_e of some tokens by loops.
double by_loops(const at::Tensor& probabilities, const at::Tensor& choices, const at::Tensor& mask, int64_t first,
                int64_t count) {
  double loss = 0, tokens = 0;
  for (int64_t token = first; token < first + count; ++token) tokens += mask[token].item<bool>() ? 1 : 0;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    double chosen = 0, sum = 0;
    for (int64_t token = first; token < first + count; ++token) {
      if (!mask[token].item<bool>()) continue;
      sum += value(probabilities[token][expert]);
      for (int64_t slot = 0; slot < kSlots; ++slot) chosen += choices[token][slot].item<int64_t>() == expert ? 1 : 0;
    }
    loss += chosen * sum;
  }
  return loss * kExperts / (kSlots * tokens * tokens);
}

TEST(Balance, BySequenceIsTheSumOverSequences) {
  const at::Tensor logits = some_logits(), p = logits.softmax(-1), choices = choices_of(logits);
  for (const at::Tensor& mask : {at::Tensor(), some_mask()}) {
    const at::Tensor own = mask.defined() ? mask : at::ones({kTokens}, at::kBool);
    const at::Tensor counts = choice_counts(choices, kExperts, 3, mask);
    EXPECT_EQ(counts.sizes(), at::IntArrayRef({3, kExperts}));
    EXPECT_EQ(counts.sum().item<int64_t>(), own.sum().item<int64_t>() * kSlots);
    double expected = 0;
    for (int64_t first = 0; first < kTokens; first += 4) expected += by_loops(p, choices, own, first, 4);
    EXPECT_NEAR(value(balance_loss(p, counts, kSlots, mask)), expected, 1e-13);
    EXPECT_NEAR(value(balance_loss(p, choice_counts(choices, kExperts, 1, mask), kSlots, mask)),
                by_loops(p, choices, own, 0, kTokens), 1e-13);
  }
}

TEST(Balance, IsOneWhereAllExpertsHaveEqualShares) {
  const at::Tensor choices = at::arange(8, at::kLong).remainder(kExperts).view({4, kSlots});
  const at::Tensor p = at::full({4, kExperts}, 0.25, at::kDouble);
  EXPECT_NEAR(value(balance_loss(p, choice_counts(choices, kExperts, 1), kSlots)), 1, 1e-14);
  EXPECT_NEAR(value(joined_balance_loss({p, p}, {choices, choices})), kSlots, 1e-14);
}

TEST(Balance, OfPartsOfASequenceAddsUp) {
  const at::Tensor logits = some_logits(), choices = choices_of(logits);
  const auto with_gradient = [&](int64_t parts) {
    const at::Tensor p = logits.softmax(-1).requires_grad_();
    at::Tensor counts = at::zeros({1, kExperts}, at::kLong), sum = at::zeros({}, at::kDouble);
    const int64_t each = kTokens / parts;
    for (int64_t i = 0; i < parts; ++i) counts = counts + choice_counts(choices.narrow(0, i * each, each), kExperts, 1);
    for (int64_t i = 0; i < parts; ++i) sum = sum + balance_loss(p.narrow(0, i * each, each), counts, kSlots);
    sum.backward();
    return std::pair{value(sum), p.grad()};
  };
  const auto [whole, gradient] = with_gradient(1);
  const auto [cut, cut_gradient] = with_gradient(3);
  EXPECT_NEAR(cut, whole, 1e-14);
  EXPECT_LE(relative_error(cut_gradient, gradient), 1e-14);
}

TEST(Balance, OfNoTokensIsZero) {
  const at::Tensor none = at::zeros({kTokens}, at::kBool), logits = some_logits();
  EXPECT_EQ(value(balance_loss(logits.softmax(-1), choice_counts(choices_of(logits), kExperts, 3, none), kSlots, none)),
            0);
}

TEST(Balance, OfJoinedLayersMultipliesSumsOverAllLayers) {
  const at::Tensor first = some_logits(), second = random_tensor({kTokens, kExperts}, 2);
  for (const at::Tensor& mask : {at::Tensor(), some_mask()}) {
    const at::Tensor p = at::cat({first, second}).softmax(-1),
                     choices = at::cat({choices_of(first), choices_of(second)});
    const at::Tensor own = mask.defined() ? at::cat({mask, mask}) : at::ones({2 * kTokens}, at::kBool);
    EXPECT_NEAR(value(joined_balance_loss({first.softmax(-1), second.softmax(-1)},
                                          {choices_of(first), choices_of(second)}, mask)),
                kSlots * by_loops(p, choices, own, 0, 2 * kTokens), 1e-13);
  }
}

TEST(RouterZLoss, SumsSquaresOverTokensThatCount) {
  const at::Tensor logits = some_logits(), each = logits.exp().sum(1).log().square();
  EXPECT_NEAR(value(router_z_loss(logits)), value(each.sum()), 1e-12);
  EXPECT_NEAR(value(router_z_loss(logits, some_mask())), value((each * some_mask()).sum()), 1e-12);
  EXPECT_EQ(router_z_loss(logits.to(at::kBFloat16)).scalar_type(), at::kFloat);
}

TEST(AttachLoss, AddsItsGradientAndNothingToTheLoss) {
  const auto gradients = [](double coefficient, bool seeded) {
    const at::Tensor logits = some_logits().requires_grad_(), weights = random_tensor({kTokens, kExperts}, 3);
    const at::Tensor extra = router_z_loss(logits);
    const at::Tensor carried =
        attach_loss(logits.tanh(), extra, coefficient, seeded ? at::full({}, 0.5) : at::Tensor());
    const at::Tensor loss = (carried * weights).sum();
    EXPECT_EQ(value(loss), value((logits.tanh() * weights).sum()));
    loss.backward(at::full({}, 3.0, at::kDouble));  // the loss's own factor is not the attached one's
    return logits.grad();
  };
  const at::Tensor logits = some_logits().requires_grad_();
  router_z_loss(logits).backward();
  const at::Tensor alone = gradients(0, false);
  EXPECT_LE(relative_error(gradients(0.25, false) - alone, 0.25 * logits.grad()), 1e-13);
  EXPECT_LE(relative_error(gradients(0.25, true) - alone, 0.125 * logits.grad()), 1e-13);
}

TEST(AttachLoss, WorksOnTheMetaDevice) {
  const at::TensorOptions meta = at::TensorOptions(at::kFloat).device(at::kMeta);
  const at::Tensor logits = at::empty({kTokens, kExperts}, meta).requires_grad_(), p = logits.softmax(-1);
  const at::Tensor choices = choices_of(logits), mask = at::empty({kTokens}, meta.dtype(at::kBool));
  at::Tensor carried = attach_loss(p, router_z_loss(logits, mask), 0.1, at::empty({}, meta));
  carried = attach_loss(carried, balance_loss(p, choice_counts(choices, kExperts, 3, mask), kSlots, mask), 0.1);
  carried = attach_loss(carried, joined_balance_loss({p, p}, {choices, choices}, mask), 0.1);
  carried.sum().backward();
  EXPECT_EQ(logits.grad().sizes(), logits.sizes());
  update_selection_bias(at::empty({kExperts}, meta), at::empty({kExperts}, meta.dtype(at::kLong)), 0.1, true);
}

TEST(SelectionBias, MovesTowardsExpertsWithFewRows) {
  const at::Tensor counts = at::tensor({5, 1, 3, 3}, at::kLong);  // mean 3
  const at::Tensor bias = at::zeros({4});
  update_selection_bias(bias, counts, 0.5);
  EXPECT_TRUE(at::equal(bias, at::tensor({-0.5, 0.5, 0.0, 0.0}, at::kFloat)));
  const at::Tensor uneven = at::tensor({9, 1, 1, 1}, at::kLong), centred = at::zeros({4});
  update_selection_bias(bias, uneven, 0.5);
  EXPECT_TRUE(at::equal(bias, at::tensor({-1.0, 1.0, 0.5, 0.5}, at::kFloat)));
  update_selection_bias(centred, uneven, 0.5, /*centred=*/true);  // signs -1 1 1 1, mean 0.5
  EXPECT_TRUE(at::equal(centred, at::tensor({-0.75, 0.25, 0.25, 0.25}, at::kFloat)));
}

}  // namespace
}  // namespace meshtrain::testing
