#include "tensor_parallel/matrix_product.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

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

}  // namespace
}  // namespace meshtrain
