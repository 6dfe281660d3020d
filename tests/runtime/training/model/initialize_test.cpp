#include "runtime/training/model/initialize.h"

#include <gtest/gtest.h>

#include <numeric>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

const Initializer kNormal = {Initializer::Kind::Normal, 0.02};

Group rank_of(int rank, int size) {
  std::vector<int64_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(dry_run_backend(rank, size), "tp", ranks, "");
}

at::Tensor drawn(const std::string& name, std::vector<int64_t> shape, int64_t dim, int rank, int size, uint64_t seed,
                 at::ScalarType dtype = at::kDouble) {
  Parameter parameter =
      sharded_parameter(name, std::move(shape), dim, rank_of(rank, size), kNormal, at::TensorOptions().dtype(dtype));
  bind(parameter, at::zeros({c10::multiply_integers(parameter.shape)}, dtype), 0);
  initialize(parameter, seed);
  return parameter.valid().detach().clone();
}

TEST(Initialize, EveryCutDrawsTheSameTensor) {
  const at::Tensor full = drawn("w", {13, 7}, 0, 0, 1, 1);
  for (int64_t dim : {0, 1}) {
    for (int size : {2, 3, 8}) {
      std::vector<at::Tensor> parts;
      for (int rank = 0; rank < size; ++rank) parts.push_back(drawn("w", {13, 7}, dim, rank, size, 1));
      EXPECT_TRUE(at::equal(at::cat(parts, dim), full)) << "dim " << dim << " over " << size;
    }
  }
}

TEST(Initialize, DependsOnSeedAndName) {
  const at::Tensor values = drawn("w", {64}, 0, 0, 1, 1);
  EXPECT_TRUE(at::equal(values, drawn("w", {64}, 0, 0, 1, 1)));
  EXPECT_FALSE(at::equal(values, drawn("w", {64}, 0, 0, 1, 2)));
  EXPECT_FALSE(at::equal(values, drawn("v", {64}, 0, 0, 1, 1)));
}

TEST(Initialize, IsStandardNormalTimesStd) {
  const at::Tensor values = drawn("w", {400, 500}, 0, 0, 1, 3) / 0.02;
  const double n = 200000;
  EXPECT_NEAR(values.mean().item<double>(), 0, 5 / std::sqrt(n));
  EXPECT_NEAR(values.square().mean().item<double>(), 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(values.pow(3).mean().item<double>(), 0, 5 * std::sqrt(15 / n));
  EXPECT_NEAR(values.pow(4).mean().item<double>(), 3, 5 * std::sqrt(96 / n));
  const at::Tensor even = values.flatten().slice(0, 0, 200000, 2), odd = values.flatten().slice(0, 1, 200000, 2);
  EXPECT_NEAR((even * odd).mean().item<double>(), 0, 5 / std::sqrt(n / 2)) << "the two values of a pair";
}

TEST(Initialize, IsDrawnInDoubleAndRounded) {
  EXPECT_TRUE(
      at::equal(drawn("w", {9, 9}, 0, 0, 1, 1, at::kBFloat16), drawn("w", {9, 9}, 0, 0, 1, 1).to(at::kBFloat16)));
}

TEST(Initialize, LeavesPaddingZero) {
  Parameter parameter =
      sharded_parameter("w", {5, 4}, 0, rank_of(2, 3), kNormal, at::TensorOptions().dtype(at::kFloat));
  bind(parameter, at::zeros({c10::multiply_integers(parameter.shape)}, at::kFloat), 0);
  initialize(parameter, 1);
  EXPECT_EQ(parameter.box.size[0], 1);
  EXPECT_TRUE(parameter.tensor.detach().narrow(0, 1, 1).eq(0).all().item<bool>());
}

}  // namespace
}  // namespace meshtrain
