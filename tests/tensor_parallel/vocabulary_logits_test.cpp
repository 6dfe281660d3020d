#include "tensor_parallel/vocabulary_logits.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kHidden = 6;

/// Returns a head whose logits for x = [1, 0, ...] are `values`, one for each id.
Parameter head_of(const at::Tensor& values, const Group& tp, at::ScalarType dtype) {
  Parameter head =
      sharded_parameter("lm_head.weight", {values.size(0), kHidden}, 0, tp, {}, at::TensorOptions().dtype(dtype));
  at::Tensor full = random_tensor({values.size(0), kHidden}, 3);
  full.select(1, 0).copy_(values);
  materialize({&head}, {{head.name, full}}, Storage::Loose);
  return head;
}

at::Tensor first_unit(at::ScalarType dtype) {
  at::Tensor x = at::zeros({kHidden}, dtype);
  x[0] = 1;
  return x;
}

VocabularyLogits::LargestLogit largest_of(const std::vector<double>& values, at::ScalarType dtype = at::kDouble) {
  const TensorParallel tp = tensor_parallel(false);
  return VocabularyLogits(first_unit(dtype), head_of(at::tensor(values, at::kDouble), tp.group, dtype), tp).largest();
}

// 5 ids over 4 ranks leave the last rank without any; 97 is not divisible by any number of ranks.
TEST(VocabularyLogits, AreThoseOfTheWholeHead) {
  for (const int64_t vocabulary : {5, 8, 97}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const TensorParallel tp = tensor_parallel(false);
      const Parameter head = head_of(random_tensor({vocabulary}, 7), tp.group, dtype);
      const at::Tensor x = random_tensor({kHidden}, 8).to(dtype);
      at::Tensor full = random_tensor({vocabulary, kHidden}, 3);
      full.select(1, 0).copy_(random_tensor({vocabulary}, 7));
      const at::Tensor expected = at::mv(full.to(dtype).to(at::kDouble), x.to(at::kDouble));
      const VocabularyLogits logits(x, head, tp);
      const at::Tensor found = logits.full();
      EXPECT_EQ(found.scalar_type(), dtype);
      ASSERT_EQ(found.sizes(), expected.sizes());
      EXPECT_LT(relative_error(found, expected), dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-6 : 1e-2);
      const VocabularyLogits::LargestLogit largest = logits.largest();
      EXPECT_EQ(largest.id, found.argmax().item<int64_t>());
      EXPECT_EQ(largest.value, found.max().to(at::kDouble).item<double>());
    }
  }
}

TEST(VocabularyLogits, OfEqualOnesTheLowestIdIsLargest) {
  EXPECT_EQ(largest_of({1, 3, 2, 3, 0, 3, 1, 3}).id, 1);
  EXPECT_EQ(largest_of({0, 0, 0, 0, 0, 0, 0, 0}).id, 0);
  EXPECT_EQ(largest_of({-5, -4, -3, -2, -2}).id, 3);
}

TEST(VocabularyLogits, PaddingIsNoLogit) {
  // Rows beyond the vocabulary are zeros, which would be the largest.
  EXPECT_EQ(largest_of({-5, -4, -3, -2, -6}).id, 3);
  EXPECT_EQ(largest_of({-5, -4, -3, -2, -6}).value, -2);
}

TEST(VocabularyLogits, WhatIsNotANumberIsLargest) {
  const VocabularyLogits::LargestLogit largest =
      largest_of({1, 3, 2, 9, 0, 3, std::numeric_limits<double>::quiet_NaN(), 3});
  EXPECT_EQ(largest.id, 6);
  EXPECT_TRUE(std::isnan(largest.value));
}

TEST(VocabularyLogits, TwoNumbersOfEachRankTravelForTheLargest) {
  const DeviceMesh mesh(MeshLayout({{"tp", world().size()}}), world());
  const TensorParallel tp{mesh.group("tp"), false};
  const Parameter head = head_of(random_tensor({97}, 1), tp.group, at::kFloat);
  const VocabularyLogits logits(first_unit(at::kFloat), head, tp);
  EXPECT_EQ(mesh.traffic().total().calls, 0);
  logits.largest();
  if (world().size() == 1) return;
  EXPECT_EQ(mesh.traffic().total("tp", "tp.logits").buffer_bytes, 2 * 8 * world().size());
  EXPECT_EQ(mesh.traffic().total().calls, 1);
  logits.full();
  const int64_t rows = (97 + world().size() - 1) / world().size() * world().size();
  EXPECT_EQ(mesh.traffic().total("tp", "tp.logits").buffer_bytes, 2 * 8 * world().size() + 4 * rows);
}

TEST(VocabularyLogits, RefuseMoreThanOneToken) {
  const TensorParallel tp = tensor_parallel(false);
  const Parameter head = head_of(random_tensor({8}, 1), tp.group, at::kDouble);
  EXPECT_THROW(VocabularyLogits(random_tensor({2, kHidden}, 1), head, tp), std::invalid_argument);
  EXPECT_THROW(VocabularyLogits(random_tensor({kHidden + 1}, 1), head, tp), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain::testing
