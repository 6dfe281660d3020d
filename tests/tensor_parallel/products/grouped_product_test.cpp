#include "tensor_parallel/products/grouped_product.h"

#include <gtest/gtest.h>

#include <limits>

#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kColumns = 96, kTerms = 130;

/// Groups of no rows, of one, of few, of some, and of many, for which libraries have the fast products.
GroupStarts uneven() {
  return {0, 0, 1, 4, 4, 30, 330, 330};
}

at::Tensor values(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  return random_tensor(shape, seed, dtype);
}

double tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-13 : dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1e-2;
}

TEST(GroupedProduct, IsOneProductForEachGroup) {
  const GroupStarts starts = uneven();
  const auto groups = static_cast<int64_t>(starts.size()) - 1;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool transposed : {false, true}) {
      const at::Tensor x = values({starts.back(), kTerms}, 1, dtype);
      const at::Tensor w = transposed ? values({groups, kTerms, kColumns}, 2, dtype).transpose(1, 2)
                                      : values({groups, kColumns, kTerms}, 2, dtype);
      const at::Tensor found = grouped_product(x, w, starts);
      EXPECT_EQ(found.scalar_type(), dtype);
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = starts[group], rows = starts[group + 1] - first;
        if (rows == 0) continue;
        const at::Tensor exact = at::mm(x.narrow(0, first, rows).to(at::kDouble), w[group].to(at::kDouble).t());
        EXPECT_LE(relative_error(found.narrow(0, first, rows), exact), tolerance(dtype)) << dtype << " group " << group;
      }
    }
  }
}

TEST(GroupedProduct, OfWeightGradientsIsAddedOrWrittenInPlace) {
  const GroupStarts starts = uneven();
  const auto groups = static_cast<int64_t>(starts.size()) - 1;
  for (const auto& [dtype, buffers] : {std::pair{at::kDouble, at::kDouble},
                                       {at::kFloat, at::kFloat},
                                       {at::kBFloat16, at::kBFloat16},
                                       {at::kBFloat16, at::kFloat},
                                       {at::kHalf, at::kFloat}}) {
    const at::Tensor a = values({starts.back(), kColumns}, 1, dtype), b = values({starts.back(), kTerms}, 2, dtype);
    const at::Tensor into = at::full({groups, kColumns, kTerms}, std::numeric_limits<double>::quiet_NaN(), buffers);
    for (int times = 1; times <= 2; ++times) {
      add_grouped_product(into, a, b, starts, /*unwritten=*/times == 1);
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = starts[group], rows = starts[group + 1] - first;
        if (rows == 0) {
          EXPECT_TRUE(into[group].eq(0).all().item<bool>()) << dtype << " group " << group;
          continue;
        }
        const auto wide = [&](const at::Tensor& tensor) { return tensor.narrow(0, first, rows).to(at::kDouble); };
        EXPECT_LE(relative_error(into[group], at::mm(wide(a).t(), wide(b)) * times), tolerance(dtype))
            << dtype << " group " << group;
      }
    }
  }
}

TEST(GroupedProduct, HasTheBitsOfItsGroupAlone) {
  const GroupStarts starts = uneven();
  const auto groups = static_cast<int64_t>(starts.size()) - 1;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = values({starts.back(), kTerms}, 1, dtype), w = values({groups, kColumns, kTerms}, 2, dtype);
    const at::Tensor found = grouped_product(x, w, starts);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = starts[group], rows = starts[group + 1] - first;
      const at::Tensor alone = grouped_product(x.narrow(0, first, rows), w.narrow(0, group, 1), {0, rows});
      EXPECT_TRUE(at::equal(found.narrow(0, first, rows), alone)) << dtype << " group " << group;
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
