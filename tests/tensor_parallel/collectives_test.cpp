#include "tensor_parallel/collectives.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <stdexcept>

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

struct Observed {
  at::Tensor y;
  at::Tensor dx;
};

template <class Operation>
Observed run(Operation operation, int64_t rows_in, int64_t rows_out) {
  // Transposed twice, so that the operation gets memory that is not contiguous.
  const at::Tensor x = of_rank(world().rank(), rows_in, 10).t().contiguous().t().requires_grad_();
  const at::Tensor before = x.detach().clone();
  const at::Tensor y = operation(x, tensor_parallel(false).group);
  y.backward(of_rank(world().rank(), rows_out, 50).t().contiguous().t());
  EXPECT_TRUE(at::equal(x, before));
  return {y.detach(), x.grad()};
}

TEST(ConjugatePairs, CopyToGroupSumsGradients) {
  const Observed seen = run(copy_to_group, kRows, kRows);
  EXPECT_TRUE(at::equal(seen.y, of_rank(world().rank(), kRows, 10)));
  EXPECT_LT(relative_error(seen.dx, sum_over_ranks(kRows, 50)), 1e-14);
}

TEST(ConjugatePairs, ReduceFromGroupHandsGradientsThrough) {
  const Observed seen = run(reduce_from_group, kRows, kRows);
  EXPECT_LT(relative_error(seen.y, sum_over_ranks(kRows, 10)), 1e-14);
  EXPECT_TRUE(at::equal(seen.dx, of_rank(world().rank(), kRows, 50)));
}

TEST(ConjugatePairs, GatherRowsScattersGradients) {
  const Observed seen = run(gather_rows, kRows, kRows * world().size());
  EXPECT_TRUE(at::equal(seen.y, all_rows(kRows, 10)));
  EXPECT_LT(relative_error(seen.dx, own_part(sum_over_ranks(kRows * world().size(), 50), 0)), 1e-14);
}

TEST(ConjugatePairs, ScatterRowsGathersGradients) {
  const Observed seen = run(scatter_rows, kRows, kRows / world().size());
  EXPECT_LT(relative_error(seen.y, own_part(sum_over_ranks(kRows, 10), 0)), 1e-14);
  EXPECT_TRUE(at::equal(seen.dx, all_rows(kRows / world().size(), 50)));
}

TEST(ConjugatePairs, OverOneRankReturnTheirArgument) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  for (const auto operation : {copy_to_group, reduce_from_group, gather_rows, scatter_rows}) {
    EXPECT_TRUE(operation(x, Group()).is_same(x));
  }
}

TEST(ConjugatePairs, ScatterRowsRefusesRowsThatDoNotDivide) {
  if (world().size() == 1) GTEST_SKIP() << "over one rank all rows divide";
  EXPECT_THROW(scatter_rows(at::ones({kRows + 1, 2}), tensor_parallel(false).group), std::invalid_argument);
}

TEST(ConjugatePairs, RefuseASecondDerivative) {
  if (world().size() == 1) GTEST_SKIP() << "over one rank there is no such operation";
  const at::Tensor x = at::ones({kRows}).requires_grad_();
  const at::Tensor y = copy_to_group(x, tensor_parallel(false).group).square().sum();
  EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true), std::logic_error);
}

}  // namespace
}  // namespace meshtrain::testing
