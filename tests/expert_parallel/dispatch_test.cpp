#include "expert_parallel/dispatch.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "mesh/backends/dry_run.h"
#include "mesh/box.h"
#include "mesh/device_mesh.h"
#include "tests/expert_parallel/naive.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kCutExperts = 8, kCutSlots = 2;

/// The tokens of all ranks and their choices; each rank has a run of them.
struct Tokens {
  std::vector<int64_t> of_rank;  ///< the number of tokens of each rank
  at::Tensor choices;            ///< of all
};

/// The ways in which tokens of all ranks choose.
std::vector<std::pair<std::string, Tokens>> all_tokens() {
  const auto n = static_cast<int64_t>(world().size());
  std::vector<int64_t> even, uneven;
  for (int64_t rank = 0; rank < n; ++rank) {
    even.push_back(6);
    uneven.push_back(rank == 1 ? 0 : 3 + 2 * rank);
  }
  const auto count = [](const std::vector<int64_t>& of_rank) {
    int64_t sum = 0;
    for (const int64_t tokens : of_rank) sum += tokens;
    return sum;
  };
  const auto any = [&](const std::vector<int64_t>& of_rank) {
    return random_tensor({count(of_rank), kCutExperts}, 3)
        .argsort(/*stable=*/true, -1)
        .narrow(1, 0, kCutSlots)
        .contiguous();
  };
  const at::Tensor last =
      at::tensor({kCutExperts - 1, kCutExperts - 2}, at::kLong).expand({count(even), kCutSlots}).contiguous();
  const at::Tensor none = at::empty({0, kCutSlots}, at::kLong);
  return {{"even", {even, any(even)}},
          {"uneven, and a rank without tokens", {uneven, any(uneven)}},
          {"all tokens to the last rank's experts", {even, last}},
          {"no tokens", {std::vector<int64_t>(static_cast<size_t>(n), 0), none}}};
}

Range tokens_of_rank(const Tokens& tokens) {
  Range range{0, tokens.of_rank[static_cast<size_t>(world().rank())]};
  for (int rank = 0; rank < world().rank(); ++rank) range.offset += tokens.of_rank[static_cast<size_t>(rank)];
  return range;
}

at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.detach().clone().requires_grad_();
}

at::Tensor as_is(const std::function<at::Tensor()>& compute) {
  return compute();
}

TEST(MixtureOverRanks, IsThatOfOneRankWithAllTokens) {
  for (const auto& [name, tokens] : all_tokens()) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(name + (recompute ? ", recomputed" : ""));
      ExpertCase shape;
      shape.num_experts = kCutExperts;
      shape.choices = tokens.choices;
      shape.tokens = tokens.choices.size(0);
      const ExpertInputs all(shape, at::kDouble, at::kDouble);
      const at::Tensor dy = random_tensor({shape.tokens, shape.width}, 50);
      const at::Tensor expected = by_mixture(shape, all);
      expected.backward(dy);

      const Range own = tokens_of_rank(tokens);
      const int64_t held = kCutExperts / world().size(), first = held * world().rank();
      const at::Tensor x = leaf(all.x.narrow(0, own.offset, own.numel)),
                       weights = leaf(all.weights.narrow(0, own.offset, own.numel));
      const ExpertWeights experts = {
          leaf(all.experts.gate_up.narrow(0, first, held)), leaf(all.experts.down.narrow(0, first, held)), {}, {}};
      const ExpertRows rows = sort_by_expert(tokens.choices.narrow(0, own.offset, own.numel), kCutExperts);
      const at::Tensor y =
          mixture_over_ranks(x, weights, rows, experts, activation_of(shape), recompute, world(), as_is);
      y.backward(dy.narrow(0, own.offset, own.numel));

      // A token's slots are summed in the same order, and an expert's rows are in the order of all tokens.
      EXPECT_TRUE(at::equal(y, expected.narrow(0, own.offset, own.numel)));
      EXPECT_LE(relative_error(x.grad(), all.x.grad().narrow(0, own.offset, own.numel)), 1e-14);
      EXPECT_LE(relative_error(weights.grad(), all.weights.grad().narrow(0, own.offset, own.numel)), 1e-14);
      EXPECT_LE(relative_error(experts.gate_up.grad(), all.experts.gate_up.grad().narrow(0, first, held)), 1e-14);
      EXPECT_LE(relative_error(experts.down.grad(), all.experts.down.grad().narrow(0, first, held)), 1e-14);
    }
  }
}

TEST(Dispatch, SendsEachRowOnceInEachDirection) {
  const auto n = static_cast<int64_t>(world().size());
  constexpr int64_t kEach = 16, kWidth = 6;
  const DeviceMesh mesh(MeshLayout({{"dp", n}}, /*ep=*/n), world());
  const DeviceMesh experts = mesh.experts();
  const Group& ep = experts.group("ep");
  const at::Tensor x = random_tensor({kEach, kWidth}, 4).requires_grad_();
  // Token t of each rank chooses experts 2t and 2t + 1 of 8: equally many rows for all.
  const at::Tensor choices = at::arange(kEach * kCutSlots, at::kLong).remainder(kCutExperts).view({kEach, kCutSlots});
  mesh.traffic().clear();
  const ExpertRows rows = sort_by_expert(choices, kCutExperts);
  const Dispatch dispatch = plan_dispatch(rows, ep);
  const at::Tensor sent = send_to_experts(rows_of_tokens(x, rows), dispatch, "ep.rows");
  EXPECT_EQ(sent.size(0), kEach * kCutSlots);
  return_from_experts(sent, dispatch, "ep.rows").sum().backward();
  const int64_t bytes = kEach * kCutSlots * kWidth * static_cast<int64_t>(sizeof(double)) * (n - 1) / n;
  int64_t of_rows = 0;
  for (const auto& [key, traffic] : mesh.traffic().entries())
    of_rows += key.purpose == "ep.rows" ? traffic.sent_bytes : 0;
  EXPECT_EQ(of_rows, 4 * bytes) << "there and back, in the forward and in the backward";
  EXPECT_TRUE(at::equal(x.grad(), at::full_like(x, kCutSlots)));
}

TEST(Dispatch, RefusesExpertsThatRanksDoNotDivide) {
  if (world().size() == 1) GTEST_SKIP() << "one rank divides all";
  const ExpertRows rows = sort_by_expert(at::zeros({4, 1}, at::kLong), world().size() + 1);
  EXPECT_THROW(plan_dispatch(rows, world()), std::invalid_argument);
}

TEST(Dispatch, IsBalancedOnTheMetaDevice) {
  constexpr int64_t kEach = 12, kRanks = 4;
  const auto backend = dry_run_backend(1, kRanks);
  const Group ep(backend, "ep", {0, 1, 2, 3}, "rank 1");
  const at::Tensor choices = at::empty({kEach, kCutSlots}, at::TensorOptions(at::kMeta).dtype(at::kLong));
  const Dispatch dispatch = plan_dispatch(sort_by_expert(choices, kCutExperts), ep);
  EXPECT_EQ(dispatch.starts.size(), kCutExperts / kRanks + 1u);
  EXPECT_EQ(dispatch.num_rows(), kEach * kCutSlots);
  const at::Tensor x = at::empty({kEach * kCutSlots, 3}, at::kMeta);
  EXPECT_EQ(send_to_experts(x, dispatch, "ep.rows").size(0), dispatch.num_rows());
}

}  // namespace
}  // namespace meshtrain::testing
