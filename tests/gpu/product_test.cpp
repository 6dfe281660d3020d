#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "mesh/device/aten.h"
#include "tensor_parallel/products/matrix_product.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

// The first product of a step writes to memory that is not zero; the second is added.
TEST(ProductOnGpu, ReadsNothingOfAnUnwrittenResult) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    for (const at::ScalarType into : {dtype, at::kFloat}) {
      for (const auto& [tokens, rows, columns] :
           std::vector<std::array<int64_t, 3>>{{7, 3, 5}, {64, 256, 128}, {33, 1000, 17}, {0, 4, 8}}) {
        const at::Tensor a = fresh({tokens, rows}).to(dtype), b = fresh({tokens, columns}).to(dtype);
        const at::Tensor wanted = at::mm(a.to(at::kDouble).t(), b.to(at::kDouble));
        const at::Tensor result = at::full({rows, columns}, NAN, at::TensorOptions(gpu()).dtype(into));
        for (int times = 1; times <= 2; ++times) {
          add_product(result, a.to(gpu()), b.to(gpu()), /*unwritten=*/times == 1);
          EXPECT_FALSE(result.isnan().any().item<bool>()) << dtype << " into " << into;
          if (tokens > 0) {
            EXPECT_LT(error_of(result, wanted * times), tolerance) << dtype << " into " << into;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
