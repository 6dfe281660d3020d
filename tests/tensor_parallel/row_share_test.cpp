#include "tensor_parallel/row_share.h"

#include <gtest/gtest.h>

#include <torch/csrc/autograd/autograd.h>

#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

TEST(RowShare, EachRowIsComputedOnceAndGradientsAreWholeOnEveryRank) {
  const int64_t n = world().size();
  for (const int64_t num_rows : {4 * n, 4 * n - 1, 2 * n + 1, int64_t{1}}) {
    SCOPED_TRACE(num_rows);
    const at::Tensor x = random_tensor({num_rows, 3}, 1).requires_grad_(), dy = random_tensor({num_rows, 3}, 2);
    const at::Tensor own = own_rows(x, world());
    at::Tensor count = at::tensor({own.size(0)}, at::kLong);
    world().all_reduce(count).wait();
    EXPECT_EQ(count.item<int64_t>(), num_rows);
    const at::Tensor y = all_rows(own.square(), num_rows, world());
    EXPECT_TRUE(at::equal(y, x.square()));
    y.backward(dy);
    EXPECT_TRUE(at::equal(x.grad(), 2 * x.detach() * dy));
  }
}

}  // namespace
}  // namespace meshtrain::testing
