#include "runtime/training/trainer/operators/squared_norm.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;

TEST(SquaredNorm, IsInFp64) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = random_tensor({1001}, 1, dtype);
    const at::Tensor seen = squared_norm(x.narrow(0, 3, 900));
    EXPECT_EQ(seen.scalar_type(), at::kDouble);
    EXPECT_EQ(seen.dim(), 0);
    const double expected = x.narrow(0, 3, 900).to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(seen.item<double>(), expected, 1e-12 * expected) << dtype;
    EXPECT_EQ(squared_norm(x.narrow(0, 0, 0)).item<double>(), 0);
    const at::Tensor meta = squared_norm(x.to(at::kMeta));
    EXPECT_TRUE(meta.is_meta());
    EXPECT_EQ(meta.scalar_type(), at::kDouble);
    EXPECT_EQ(meta.dim(), 0);
  }
}

TEST(SquaredNorm, OfManyElementsIsTheSameOnAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random_tensor({300'007}, 2, dtype);
    at::set_num_threads(1);
    const double seen = squared_norm(x).item<double>(), expected = x.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(seen, expected, 1e-12 * expected) << dtype;
    at::set_num_threads(2);
    if (has_lanes(dtype)) {
      EXPECT_EQ(squared_norm(x).item<double>(), seen) << dtype;
    }
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace meshtrain
