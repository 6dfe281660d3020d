#include "tensor_parallel/products/matrix_product.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "tensor_parallel/products/product_library.h"

namespace meshtrain {
namespace {

// Sizes above the one from which fp32 products on the host use oneDNN.
constexpr int64_t kTokens = 70, kOut = 96, kIn = 130;

class MatrixProduct : public ::testing::Test {
 protected:
  static void expect_close(const at::Tensor& found, const at::Tensor& expected) {
    EXPECT_LT((found.to(at::kDouble) - expected).abs().max().item<double>(), 1e-4);
  }

  at::Tensor y_ = at::randn({kTokens, kOut}), x_ = at::randn({kTokens, kIn});
  at::Tensor exact_ = at::mm(y_.to(at::kDouble).t(), x_.to(at::kDouble));
};

TEST_F(MatrixProduct, IsAddedToWhatIsThere) {
  const at::Tensor before = at::randn({kOut, kIn});
  const at::Tensor sum = before.clone();
  add_product(sum, y_, x_);
  expect_close(sum, exact_ + before);
  const at::Tensor wide = at::zeros({kOut, 2 * kIn});
  add_product(wide.narrow(1, 0, kIn), y_, x_);  // rows that are not side by side
  expect_close(wide.narrow(1, 0, kIn), exact_);
  EXPECT_EQ(wide.narrow(1, kIn, kIn).abs().max().item<float>(), 0);
}

// If time chose the library, ranks or starts would get different bits.
TEST_F(MatrixProduct, TheProcessorAloneChoosesTheLibraryThatAdds) {
  const at::Tensor y = at::randn({512, 256}), x = at::randn({512, 256}), before = at::randn({256, 256});
  const at::Tensor found = before.clone(), onednn = before.clone(), blas = before.clone();
  add_product(found, y, x);
  if (onednn_multiplies_in_place()) multiply_by_onednn(onednn, y.t(), x, /*beta=*/1);
  at::Tensor(blas).addmm_(y.t(), x);
  EXPECT_TRUE(found.equal(onednn_multiplies_in_place() ? onednn : blas));
}

TEST_F(MatrixProduct, ReplacesWhatNobodyHasWritten) {
  const at::Tensor sum = at::full({kOut, kIn}, std::numeric_limits<float>::quiet_NaN());
  add_product(sum, y_, x_, /*unwritten=*/true);
  expect_close(sum, exact_);
}

TEST_F(MatrixProduct, IsWrittenIntoRowsOfALargerTensor) {
  const at::Tensor rows = at::full({kOut + 2, kIn}, 7.0);
  product_into(rows.narrow(0, 1, kOut), y_.t(), x_.t());
  expect_close(rows.narrow(0, 1, kOut), exact_);
  EXPECT_TRUE(rows[0].eq(7).all().item<bool>() && rows[kOut + 1].eq(7).all().item<bool>());
}

// Those of generated tokens, for which loops of their own read the weights once.
TEST_F(MatrixProduct, OfFewRowsIsTheDefinition) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {1, 2, 3, 4, 5}) {
      for (const auto& [columns, terms] : {std::pair<int64_t, int64_t>{1, 1}, {3, 16}, {9, 130}, {400, 300}}) {
        SCOPED_TRACE(::testing::Message() << dtype << ", " << rows << " x " << terms << " by " << columns);
        const at::Tensor x = at::randn({rows, terms + 2}).to(dtype).narrow(1, 1, terms);  // rows that are apart
        const at::Tensor weight = at::randn({columns, terms + 1}).to(dtype).narrow(1, 0, terms);
        const at::Tensor exact = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t()), found = product(x, weight);
        EXPECT_EQ(found.scalar_type(), dtype);
        const double most = exact.abs().max().item<double>();
        const double error = (found.to(at::kDouble) - exact).abs().max().item<double>() / most;
        EXPECT_LE(error, c10::isReducedFloatingType(dtype) ? 1e-2 : 1e-5);
      }
    }
  }
}

// Entries for older processors set the variable (tests/CMakeLists.txt).
TEST_F(MatrixProduct, OfHalvesIsInFp32WhereOneDnnMayNotMultiplyThem) {
  const char* const variable = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string most = variable == nullptr ? "" : variable;
  if (most != "AVX2" && most != "SSE41") GTEST_SKIP() << "oneDNN may use more";
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    EXPECT_FALSE(onednn_multiplies(dtype)) << most;
    EXPECT_TRUE(multiplied_in_fp32(at::empty({0}, dtype))) << most;
  }
}

}  // namespace
}  // namespace meshtrain
