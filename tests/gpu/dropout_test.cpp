#include "tensor_parallel/operators/dropout.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

TEST(DropoutOnGpu, SetsTheFeaturesOfTheHostToZero) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, size, first] :
         {std::tuple<int64_t, int64_t, int64_t>{0, 8, 0}, {1, 1, 3}, {33, 40, 0}, {7, 41, 6}, {300, 64, 64}}) {
      const at::Tensor x = fresh({rows, size}).to(dtype), tokens = at::arange(rows) * 3 + (int64_t{1} << 33);
      const at::Tensor expected = drop(x, tokens, first, {0.3, 5});
      const at::Tensor seen = drop(x.to(gpu()), tokens.to(gpu()), first, {0.3, 5}).to(at::kCPU);
      EXPECT_TRUE(at::equal(seen, expected)) << dtype << " " << rows << " " << size << " " << first;
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
