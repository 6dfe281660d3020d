#include "tensor_parallel/cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <stdexcept>

#include "mesh/parameter.h"
#include "tensor_parallel/row_chunks.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain {
namespace {

using namespace testing;

constexpr int64_t kIgnored = -100;

/// Where this rank's columns of the vocabulary lie.
struct Columns {
  explicit Columns(int64_t vocab_size) {
    const Parameter head = sharded_parameter("head", {vocab_size, 1}, 0, tensor_parallel(false).group, {}, {});
    first = head.box.start[0];
    valid = head.box.size[0];
    padded = head.shape[0];
  }
  int64_t first, valid, padded;
};

at::Tensor make_labels(int64_t tokens, int64_t vocab_size, uint64_t seed) {
  return random_tensor({tokens}, seed).mul(1000).to(at::kLong).remainder(vocab_size);
}

/// The loss of every rank's columns and its gradient for them, when the loss is scaled by `factor`.
struct Outcome {
  at::Tensor loss;
  at::Tensor gradient;  ///< [T, V_local], padding included
};

Outcome run(const at::Tensor& whole_logits, const at::Tensor& labels, int64_t ignored, double factor) {
  const Columns columns(whole_logits.size(1));
  // Padding must take no part whatever it holds.
  const at::Tensor leaf = at::full({whole_logits.size(0), columns.padded}, std::numeric_limits<double>::quiet_NaN(),
                                   whole_logits.options());
  leaf.narrow(1, 0, columns.valid).copy_(whole_logits.narrow(1, columns.first, columns.valid));
  leaf.requires_grad_();
  const at::Tensor loss = vocab_parallel_cross_entropy(leaf.view_as(leaf).clone(), labels, columns.first, columns.valid,
                                                       ignored, tensor_parallel(false));
  (loss * factor).backward();
  return {loss.detach(), leaf.grad()};
}

Outcome plain(const at::Tensor& whole_logits, const at::Tensor& labels, int64_t ignored, double factor) {
  const Columns columns(whole_logits.size(1));
  const at::Tensor leaf = whole_logits.to(at::kDouble).detach().clone().requires_grad_();
  const at::Tensor loss = at::cross_entropy_loss(leaf, labels, {}, at::Reduction::Sum, ignored);
  (loss * factor).backward();
  at::Tensor gradient = at::zeros({whole_logits.size(0), columns.padded}, at::kDouble);
  gradient.narrow(1, 0, columns.valid).copy_(leaf.grad().narrow(1, columns.first, columns.valid));
  return {loss.detach(), gradient};
}

void expect_equal(const Outcome& seen, const Outcome& expected, double tolerance) {
  EXPECT_LT(relative_error(seen.loss, expected.loss), tolerance);
  EXPECT_FALSE(seen.gradient.isnan().any().item<bool>());
  const double difference = (seen.gradient.to(at::kDouble) - expected.gradient).abs().max().item<double>();
  EXPECT_LT(difference, tolerance);
}

// 5 columns over 4 ranks leave the last rank without any; 97 divide over no number of ranks.
class CrossEntropyTest : public ::testing::TestWithParam<std::tuple<int64_t, at::ScalarType>> {};

INSTANTIATE_TEST_SUITE_P(Vocabularies, CrossEntropyTest,
                         ::testing::Combine(::testing::Values(1, 5, 8, 97),
                                            ::testing::Values(at::kDouble, at::kFloat)));

TEST_P(CrossEntropyTest, IsThePlainLoss) {
  const auto& [vocab_size, dtype] = GetParam();
  const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-5;
  const at::Tensor logits = random_tensor({10, vocab_size}, 1, dtype).mul(3);
  at::Tensor labels = make_labels(10, vocab_size, 2);
  expect_equal(run(logits, labels, kIgnored, 0.25), plain(logits, labels, kIgnored, 0.25), tolerance);
  labels.narrow(0, 2, 5).fill_(kIgnored);
  expect_equal(run(logits, labels, kIgnored, 0.25), plain(logits, labels, kIgnored, 0.25), tolerance);
  labels.fill_(kIgnored);
  const Outcome none = run(logits, labels, kIgnored, 0.25);
  EXPECT_EQ(none.loss.item<double>(), 0);
  EXPECT_EQ(none.gradient.abs().sum().item<double>(), 0);
  EXPECT_EQ(none.loss.scalar_type(), dtype);
}

TEST(CrossEntropy, IgnoresAnIdOfTheVocabularyToo) {
  const at::Tensor logits = random_tensor({12, 8}, 1);
  const at::Tensor labels = at::arange(12).remainder(8);
  for (const int64_t ignored : {0, 5})
    expect_equal(run(logits, labels, ignored, 1), plain(logits, labels, ignored, 1), 1e-12);
}

TEST(CrossEntropy, IsStableForLargeLogits) {
  const at::Tensor labels = make_labels(6, 97, 2);
  for (const double offset : {-1e4, 1e4}) {
    const at::Tensor logits = random_tensor({6, 97}, 1).mul(100).add(offset);
    expect_equal(run(logits, labels, kIgnored, 1), plain(logits, labels, kIgnored, 1), 1e-11);
    EXPECT_TRUE(run(logits.to(at::kFloat), labels, kIgnored, 1).loss.isfinite().item<bool>());
  }
}

TEST(CrossEntropy, OfHalvesIsComputedInFp32) {
  const at::Tensor labels = make_labels(64, 97, 2);
  for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
    const at::Tensor logits = random_tensor({64, 97}, 1, half);
    const Outcome seen = run(logits, labels, kIgnored, 1), expected = plain(logits, labels, kIgnored, 1);
    EXPECT_EQ(seen.loss.scalar_type(), at::kFloat);
    EXPECT_EQ(seen.gradient.scalar_type(), half);
    EXPECT_LT(relative_error(seen.loss, expected.loss), 1e-5);
    // Only the rounding of the result is in halves.
    EXPECT_TRUE(at::allclose(seen.gradient.to(at::kDouble), expected.gradient, half == at::kHalf ? 1e-3 : 8e-3, 1e-7));
  }
}

TEST(CrossEntropy, OfManyColumnsIsComputedInPieces) {
  constexpr int64_t kWide = 100003, kTokens = 24;
  static_assert(kWide * kTokens > kTemporaryBytes / 8);
  const at::Tensor logits = random_tensor({kTokens, kWide}, 1);
  const at::Tensor labels = make_labels(kTokens, kWide, 2);
  expect_equal(run(logits, labels, kIgnored, 1), plain(logits, labels, kIgnored, 1), 1e-11);
  const at::Tensor half = logits.to(at::kBFloat16);
  EXPECT_LT(relative_error(run(half, labels, kIgnored, 1).loss, plain(half, labels, kIgnored, 1).loss), 1e-5);
}

TEST(CrossEntropy, IsTheSameOnEveryRank) {
  const at::Tensor logits = random_tensor({32, 97}, 1, at::kFloat);
  const at::Tensor loss = run(logits, make_labels(32, 97, 2), kIgnored, 1).loss.view({1});
  const Group& group = tensor_parallel(false).group;
  at::Tensor all = at::empty({group.size()}, at::kFloat);
  group.all_gather(all, loss).wait();
  EXPECT_TRUE(all.eq(loss).all().item<bool>());
}

TEST(CrossEntropy, WritesItsGradientOverTheLogits) {
  const at::Tensor leaf = random_tensor({6, 8}, 1).requires_grad_();
  const at::Tensor logits = leaf.clone();
  const void* memory = logits.data_ptr();
  void* gradient_memory = nullptr;
  logits.register_hook([&](const at::Tensor& gradient) { gradient_memory = gradient.data_ptr(); });
  vocab_parallel_cross_entropy(logits, make_labels(6, 8, 2), 0, 8, kIgnored, {}).backward();
  EXPECT_EQ(gradient_memory, memory);
}

TEST(CrossEntropy, LeavesALeafAsItIs) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    const at::Tensor leaf = random_tensor({6, 8}, 1, dtype).requires_grad_();
    const at::Tensor before = leaf.detach().clone();
    vocab_parallel_cross_entropy(leaf, make_labels(6, 8, 2), 0, 8, kIgnored, {}).backward();
    EXPECT_TRUE(at::equal(leaf, before));
    const at::Tensor reference = before.to(at::kDouble).requires_grad_();
    at::cross_entropy_loss(reference, make_labels(6, 8, 2), {}, at::Reduction::Sum).backward();
    EXPECT_LT(relative_error(leaf.grad(), reference.grad()), dtype == at::kDouble ? 1e-12 : 1e-2);
  }
}

TEST(CrossEntropy, RefusesASecondDerivative) {
  const at::Tensor leaf = random_tensor({6, 8}, 1).requires_grad_();
  const at::Tensor loss = vocab_parallel_cross_entropy(leaf, make_labels(6, 8, 2), 0, 8, kIgnored, {});
  EXPECT_THROW(torch::autograd::grad({loss}, {leaf}, {}, std::nullopt, /*create_graph=*/true), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
