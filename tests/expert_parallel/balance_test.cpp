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

/// Returns the sequence of each token, of `sequences` equally long ones.
at::Tensor sequences_of(int64_t sequences) {
  return at::arange(kTokens, at::kLong).div(kTokens / sequences, "floor");
}

double value(const at::Tensor& scalar) {
  return scalar.item<double>();
}

double balance_loss(const at::Tensor& probabilities, const at::Tensor& choices, const at::Tensor& sequence_of,
                    int64_t sequences) {
  const at::Tensor counts = choice_counts(choices, kExperts, sequence_of, sequences);
  return value(
      (balance_factors(counts, kSlots, at::kDouble) * sums_by_sequence(probabilities, sequence_of, sequences)).sum());
}

/// Computes E / (k n^2) sum_e count_e P_e of some tokens by loops.
double by_loops(const at::Tensor& probabilities, const at::Tensor& choices, int64_t first, int64_t count) {
  double loss = 0;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    double chosen = 0, sum = 0;
    for (int64_t token = first; token < first + count; ++token) {
      sum += value(probabilities[token][expert]);
      for (int64_t slot = 0; slot < kSlots; ++slot) chosen += choices[token][slot].item<int64_t>() == expert ? 1 : 0;
    }
    loss += chosen * sum;
  }
  return loss * kExperts / static_cast<double>(kSlots * count * count);
}

TEST(Balance, BySequenceIsTheSumOverSequences) {
  const at::Tensor logits = some_logits(), p = logits.softmax(-1), choices = choices_of(logits);
  const at::Tensor counts = choice_counts(choices, kExperts, sequences_of(3), 3);
  EXPECT_EQ(counts.sizes(), at::IntArrayRef({3, kExperts}));
  EXPECT_TRUE(at::equal(counts.sum(1), at::full({3}, 4 * kSlots, at::kLong)));
  double expected = 0;
  for (int64_t first = 0; first < kTokens; first += 4) expected += by_loops(p, choices, first, 4);
  EXPECT_NEAR(balance_loss(p, choices, sequences_of(3), 3), expected, 1e-13);
  EXPECT_NEAR(balance_loss(p, choices, sequences_of(1), 1), by_loops(p, choices, 0, kTokens), 1e-13);
}

TEST(Balance, IsOneWhereAllExpertsHaveEqualShares) {
  const at::Tensor choices = at::arange(2 * kTokens, at::kLong).remainder(kExperts).view({kTokens, kSlots});
  const at::Tensor p = at::full({kTokens, kExperts}, 0.25, at::kDouble);
  EXPECT_NEAR(balance_loss(p, choices, sequences_of(1), 1), 1, 1e-14);
}

TEST(Balance, OfNoTokensIsZero) {
  EXPECT_EQ(value(balance_factors(at::zeros({2, kExperts}, at::kLong), kSlots, at::kDouble).sum()), 0);
}

TEST(RouterZLoss, SumsSquaresOverTokens) {
  const at::Tensor logits = some_logits(), each = logits.exp().sum(1).log().square();
  EXPECT_NEAR(value(router_z_loss(logits)), value(each.sum()), 1e-12);
  EXPECT_EQ(router_z_loss(logits.to(at::kBFloat16)).scalar_type(), at::kFloat);
}

TEST(AttachLoss, AddsItsGradientAndNothingToTheLoss) {
  const auto gradients = [](double coefficient, double seed) {
    const at::Tensor logits = some_logits().requires_grad_(), weights = random_tensor({kTokens, kExperts}, 3);
    const at::Tensor extra = router_z_loss(logits);
    const at::Tensor carried = attach_loss(logits.tanh(), extra, coefficient, at::full({}, seed));
    const at::Tensor loss = (carried * weights).sum();
    EXPECT_EQ(value(loss), value((logits.tanh() * weights).sum()));
    loss.backward(at::full({}, 3.0, at::kDouble));  // the loss's own factor is not the attached one's
    return logits.grad();
  };
  const at::Tensor logits = some_logits().requires_grad_();
  router_z_loss(logits).backward();
  const at::Tensor alone = gradients(0, 1);
  EXPECT_LE(relative_error(gradients(0.25, 1) - alone, 0.25 * logits.grad()), 1e-13);
  EXPECT_LE(relative_error(gradients(0.25, 0.5) - alone, 0.125 * logits.grad()), 1e-13);
}

TEST(SelectionBias, MovesTowardsExpertsWithFewRows) {
  const at::Tensor counts = at::tensor({5, 1, 3, 3}, at::kLong);  // mean 3
  EXPECT_TRUE(
      at::equal(selection_bias_update(counts, 0.5).to(at::kDouble), at::tensor({-0.5, 0.5, 0.0, 0.0}, at::kDouble)));
  const at::Tensor uneven = at::tensor({9.0, 1.0, 1.0, 1.0}, at::kDouble);
  EXPECT_TRUE(at::equal(selection_bias_update(uneven, 0.5), at::tensor({-0.5, 0.5, 0.5, 0.5}, at::kDouble)));
}

}  // namespace
}  // namespace meshtrain::testing
