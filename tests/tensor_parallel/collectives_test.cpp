#include "tensor_parallel/collectives.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "mesh/device/aten.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kRows = 8;

at::Tensor of_rank(int rank, int64_t rows, uint64_t seed) {
  return random_tensor({rows, 3}, seed + static_cast<uint64_t>(rank));
}

at::Tensor sum_over_ranks(int64_t rows, uint64_t seed) {
  at::Tensor sum = at::zeros({rows, 3}, at::kDouble);
  for (int rank = 0; rank < world().size(); ++rank) sum += of_rank(rank, rows, seed);
  return sum;
}

at::Tensor all_rows(int64_t rows, uint64_t seed) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < world().size(); ++rank) parts.push_back(of_rank(rank, rows, seed));
  return at::cat(parts);
}

/// Returns memory that is not contiguous.
at::Tensor transposed_twice(const at::Tensor& x) {
  return x.t().contiguous().t();
}

TEST(RowCollectives, GatherTheRowsOfAllRanks) {
  const at::Tensor x = of_rank(world().rank(), kRows, 10);
  const PendingTensor rows = start_gather_rows(transposed_twice(x), tensor_parallel(false).group);
  EXPECT_TRUE(at::equal(rows.wait(), all_rows(kRows, 10)));
  EXPECT_TRUE(at::equal(x, of_rank(world().rank(), kRows, 10)));
}

TEST(RowCollectives, ScatterTheSumOfAllRanks) {
  const at::Tensor x = of_rank(world().rank(), kRows, 10);
  const PendingTensor rows = start_scatter_rows(transposed_twice(x), tensor_parallel(false).group);
  EXPECT_LT(relative_error(rows.wait(), own_part(sum_over_ranks(kRows, 10), 0)), 1e-14);
  EXPECT_TRUE(at::equal(x, of_rank(world().rank(), kRows, 10)));
}

TEST(RowCollectives, OnOneRankReturnTheirArgument) {
  const at::Tensor x = at::ones({4});
  EXPECT_TRUE(start_gather_rows(x, Group()).wait().is_same(x));
  EXPECT_TRUE(start_scatter_rows(x, Group()).wait().is_same(x));
}

TEST(RowCollectives, RefuseToScatterRowsThatDoNotDivide) {
  if (world().size() == 1) GTEST_SKIP() << "over one rank all rows divide";
  EXPECT_THROW(start_scatter_rows(at::ones({kRows + 1, 2}), tensor_parallel(false).group), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain::testing
