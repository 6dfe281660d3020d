#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "tensor_parallel/operators/embedding_gradient.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

struct Buffers {
  at::ScalarType grad;
  at::ScalarType into;
  double half_ulp;  ///< relative error of one rounding of `into`
};
const std::vector<Buffers> kBuffers = {{at::kFloat, at::kFloat, 0x1p-24},
                                       {at::kBFloat16, at::kFloat, 0x1p-24},
                                       {at::kBFloat16, at::kBFloat16, 0x1p-8},
                                       {at::kHalf, at::kHalf, 0x1p-11}};

/// Expects each sum to be right up to fp32 rounding and one rounding of the result, with the same bits in two runs.
void expect_sums(const Buffers& buffers, const at::Tensor& ids, const at::Tensor& absent, int64_t rows, int64_t size) {
  const std::string what =
      c10::str(ids.numel(), " tokens, [", rows, ", ", size, "], ", buffers.grad, " ", buffers.into);
  const at::Tensor grad = fresh({ids.numel(), size}).add_(0.5).to(buffers.grad);
  const at::Tensor before = fresh({rows, size}).to(buffers.into);
  at::Tensor exact = before.to(at::kDouble), magnitude = exact.abs(), wide = grad.to(at::kDouble);
  if (absent.defined()) wide.masked_fill_(absent.unsqueeze(1), 0);
  exact.index_add_(0, ids, wide);
  magnitude.index_add_(0, ids, wide.abs());

  const ShardIds device{ids.to(gpu()), absent.defined() ? absent.to(gpu()) : at::Tensor()};
  at::Tensor seen[2];
  for (at::Tensor& into : seen) {
    into = before.to(gpu(), /*non_blocking=*/false, /*copy=*/true);
    poison({at::empty({ids.numel(), size}, at::kFloat)});
    add_embedding_gradient(into, device, grad.to(gpu()));
  }
  EXPECT_TRUE(at::equal(seen[0], seen[1])) << what;
  const at::Tensor allowed = exact.abs().mul_(buffers.half_ulp).add_(magnitude, 1e-6);
  const at::Tensor difference = (seen[0].to(at::kCPU).to(at::kDouble) - exact).abs();
  EXPECT_TRUE(difference.le(allowed).all().item<bool>()) << what << ": " << (difference - allowed).max().item<double>();
}

// Vectors and single columns, more and fewer tokens than a tile, more columns than a block has.
TEST(EmbeddingGradientOnGpu, SumsTheTokensOfARow) {
  for (const Buffers& buffers : kBuffers) {
    for (const auto& [tokens, rows, size] : {std::tuple<int64_t, int64_t, int64_t>{0, 5, 8},
                                             {1, 1, 1},
                                             {31, 7, 33},
                                             {33, 1, 8},
                                             {64, 64, 136},
                                             {many(4000), many(49152), 24},
                                             {100, 3, 2056}}) {
      expect_sums(buffers, at::randint(rows, {tokens}, at::kLong), {}, rows, size);
      const at::Tensor absent = at::rand({tokens}) < 0.5;
      expect_sums(buffers, at::randint(rows, {tokens}, at::kLong).masked_fill_(absent, 0), absent, rows, size);
    }
  }
}

// One token occurs 10,000 times, across hundreds of tiles, with others before, among and after it.
TEST(EmbeddingGradientOnGpu, LosesNothingOfAFrequentToken) {
  constexpr int64_t kFrequent = 10000, kOthers = 333, kRows = 97;
  for (const Buffers& buffers : kBuffers) {
    const at::Tensor ids = at::cat({at::full({kFrequent}, 41, at::kLong), at::randint(kRows, {kOthers}, at::kLong)});
    expect_sums(buffers, ids.index_select(0, at::randperm(ids.numel(), at::kLong)), {}, kRows, 16);
  }
}

TEST(EmbeddingGradientOnGpu, AllTokensAbsentChangeNothing) {
  const at::Tensor ids = at::zeros({100}, at::kLong);
  expect_sums(kBuffers[2], ids, at::ones({100}, at::kBool), 5, 8);
}

}  // namespace
}  // namespace meshtrain::testing
