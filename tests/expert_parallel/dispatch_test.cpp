#include "expert_parallel/dispatch.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <stdexcept>

#include "expert_parallel/experts.h"
#include "mesh/backends/dry_run.h"
#include "mesh/box.h"
#include "mesh/device/meta_device.h"
#include "mesh/device_mesh.h"
#include "runtime/program/forecast/meta_memory.h"
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
  const at::Tensor one = at::full({count(even), 1}, kCutExperts - 1, at::kLong);
  const at::Tensor none = at::empty({0, kCutSlots}, at::kLong);
  return {{"even", {even, any(even)}},
          {"uneven, and a rank without tokens", {uneven, any(uneven)}},
          {"all tokens to the last rank's experts", {even, last}},
          {"all tokens to one expert, whose rows are computed in blocks on four ranks", {even, one}},
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
      shape.top_k = tokens.choices.size(1);
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
      const PendingDispatch dispatch(tokens.choices.narrow(0, own.offset, own.numel), kCutExperts, world());
      const at::Tensor y =
          mixture_over_ranks(x, weights, dispatch.wait(), experts, activation_of(shape), recompute, as_is);
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

/// Returns the weights of the experts that this rank holds.
ExpertWeights own_experts(int64_t held, int64_t features, int64_t width,
                          const at::TensorOptions& options = at::kDouble) {
  const auto made = [&](at::IntArrayRef shape) {
    at::Tensor weight = at::ones(shape, options).requires_grad_();
    weight.mutable_grad() = at::zeros(shape, options);
    return weight;
  };
  return {made({held, 2 * features, width}), made({held, width, features}), {}, {}};
}

TEST(Dispatch, SendsEachRowOnceInEachDirection) {
  const auto n = static_cast<int64_t>(world().size());
  constexpr int64_t kEach = 16, kWidth = 6;
  const DeviceMesh mesh(MeshLayout({{"dp", n}}, /*ep=*/n), world());
  const DeviceMesh experts = mesh.experts();
  const Group& ep = experts.group("ep");
  const at::Tensor x = random_tensor({kEach, kWidth}, 4).requires_grad_();
  const at::Tensor weights = at::ones({kEach, kCutSlots}, at::kDouble).requires_grad_();
  // Token t of each rank chooses experts 2t and 2t + 1 of 8: equally many rows for all.
  const at::Tensor choices = at::arange(kEach * kCutSlots, at::kLong).remainder(kCutExperts).view({kEach, kCutSlots});
  mesh.traffic().clear();
  const Dispatch dispatch = PendingDispatch(choices, kCutExperts, ep).wait();
  EXPECT_EQ(dispatch.num_received(), kEach * kCutSlots);
  mixture_over_ranks(x, weights, dispatch, own_experts(kCutExperts / n, 2, kWidth), silu_activation(), false, as_is)
      .sum()
      .backward();
  const int64_t bytes = kEach * kCutSlots * static_cast<int64_t>(sizeof(double)) * (n - 1) / n;
  std::map<std::string, int64_t> sent;
  for (const auto& [key, traffic] : mesh.traffic().entries()) sent[key.purpose] += traffic.sent_bytes;
  EXPECT_EQ(sent["ep.rows"], 4 * bytes * kWidth) << "there and back, in the forward and in the backward";
  EXPECT_EQ(sent["ep.weights"], 2 * bytes) << "there, and their gradients back";
}

TEST(Dispatch, RefusesExpertsThatRanksDoNotDivide) {
  if (world().size() == 1) GTEST_SKIP() << "one rank divides all";
  EXPECT_THROW(PendingDispatch(at::zeros({4, 1}, at::kLong), world().size() + 1, world()), std::invalid_argument);
}

/// Returns a rank of a world of `ranks` ranks that does not exist.
Group imagined(int ranks) {
  std::vector<int64_t> members(static_cast<size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return Group(dry_run_backend(1, ranks), "ep", members, "rank 1");
}

at::Tensor choices_on_meta(int64_t tokens, int64_t slots) {
  return at::empty({tokens, slots}, at::TensorOptions(at::kMeta).dtype(at::kLong));
}

TEST(Dispatch, IsBalancedOnTheMetaDeviceUnlessTheWorstIsAssumed) {
  constexpr int64_t kEach = 12, kRanks = 4, kOwn = kCutExperts / kRanks;
  const at::Tensor choices = choices_on_meta(kEach, kCutSlots);
  const auto dispatch = [&] { return PendingDispatch(choices, kCutExperts, imagined(kRanks)).wait(); };
  EXPECT_EQ(dispatch().num_received(), kEach * kCutSlots);
  EXPECT_EQ(dispatch().pieces.size(), static_cast<size_t>(kOwn));
  {
    const WorstRouting worst;
    EXPECT_EQ(dispatch().num_received(), kRanks * kEach * kCutSlots);
    EXPECT_EQ(PendingDispatch(choices_on_meta(kEach, 3), kCutExperts, imagined(kRanks)).wait().num_received(),
              kRanks * kEach * kOwn)
        << "a token chooses an expert once";
  }
  EXPECT_EQ(dispatch().num_received(), kEach * kCutSlots);
}

/// The largest memory of a rank that receives all rows of `ranks` ranks, without its rows, in either pass.
int64_t most_activations(int ranks) {
  constexpr int64_t kEach = 64, kWidth = 16, kFeatures = 4096, kRowTensors = 8, kElement = 4;
  const MetaDeviceGuard host(c10::kCPU);
  const auto options = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  const WorstRouting worst;
  const Dispatch dispatch = PendingDispatch(choices_on_meta(kEach, kCutSlots), 4 * ranks, imagined(ranks)).wait();
  EXPECT_EQ(dispatch.num_received(), ranks * kEach * kCutSlots);
  const ExpertWeights experts = own_experts(4, kFeatures, kWidth, options);
  const at::Tensor x = at::empty({kEach, kWidth}, options).requires_grad_(),
                   weights = at::empty({kEach, kCutSlots}, options).requires_grad_();
  MetaMemory memory;
  mixture_over_ranks(x, weights, dispatch, experts, silu_activation(), false, as_is)
      .backward(at::empty({kEach, kWidth}, options));
  EXPECT_LE(kRowTensors * dispatch.num_received() * kWidth * kElement, memory.peak() / 4) << "rows hardly count";
  return memory.peak() - kRowTensors * dispatch.num_received() * kWidth * kElement;
}

TEST(MixtureOverRanks, NeedsNoMoreForActivationsWithMoreRanks) {
  const int64_t of_two = most_activations(2);  // all are kept: twice those of balanced rows
  EXPECT_LE(most_activations(4), of_two);
  EXPECT_LE(most_activations(16), of_two);
}

}  // namespace
}  // namespace meshtrain::testing
