#include "tensor_parallel/operators/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

TEST(DropoutTest, SetsFeaturesToZeroAndScalesTheOthers) {
  const at::Tensor x = random_tensor({400, 50}, 1).add_(10);  // no zeros
  for (const double probability : {0.1, 0.5, 0.9}) {
    const at::Tensor y = drop(x, at::arange(400), 0, {probability, 3});
    const at::Tensor zero = y.eq(0);
    // 20,000 draws: the bounds are 5 standard deviations.
    EXPECT_NEAR(zero.to(at::kDouble).mean().item<double>(), probability,
                5 * std::sqrt(probability * (1 - probability) / 20000));
    EXPECT_TRUE(at::allclose(y, (x / (1 - probability)).masked_fill(zero, 0), 1e-14));
  }
}

TEST(DropoutTest, DependsOnKeyTokenAndFeatureAlone) {
  const at::Tensor x = at::ones({64, 40}, at::kDouble), tokens = at::arange(64) + (int64_t{1} << 33);
  const Dropout dropout{0.5, 3};
  const at::Tensor all = drop(x, tokens, 0, dropout);
  // A rank's columns and rows, at every offset in a group of features.
  for (const int64_t first : {1, 2, 3, 4, 21}) {
    EXPECT_TRUE(at::equal(drop(x.narrow(1, first, 19), tokens, first, dropout), all.narrow(1, first, 19))) << first;
  }
  const at::Tensor some = at::tensor({40, 3, 17}, at::kLong);
  EXPECT_TRUE(at::equal(drop(x.narrow(0, 0, 3), tokens.index({some}), 0, dropout), all.index({some})));

  EXPECT_FALSE(at::equal(drop(x, tokens, 0, {0.5, 4}), all));
  EXPECT_FALSE(at::equal(drop(x, tokens + 1, 0, dropout), all));
  EXPECT_FALSE(at::equal(drop(x, at::arange(64), 0, dropout), all)) << "the upper half of a token's number counts";
  EXPECT_TRUE(at::equal(drop(x.to(at::kFloat), tokens, 0, dropout).to(at::kDouble), all));
  EXPECT_TRUE(at::equal(drop(x.to(at::kBFloat16), tokens, 0, dropout).to(at::kDouble), all));
}

TEST(DropoutTest, MultipliesHalvesInFp32) {
  const at::Tensor x = random_tensor({64, 40}, 1).to(at::kBFloat16), tokens = at::arange(64);
  const at::Tensor wide = drop(x.to(at::kFloat), tokens, 0, {0.1, 3});
  EXPECT_TRUE(at::equal(drop(x, tokens, 0, {0.1, 3}), wide.to(at::kBFloat16)));
}

}  // namespace
}  // namespace meshtrain::testing
