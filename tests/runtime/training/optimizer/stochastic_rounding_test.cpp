#include "runtime/training/optimizer/operators/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "runtime/training/optimizer/optimizer.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;

at::Tensor rounded(const at::Tensor& exact, uint64_t key, int64_t index = 0, uint32_t step = 1, uint32_t stream = 0) {
  const at::Tensor result = at::full(exact.sizes(), -7, at::kBFloat16);
  round_stochastically(result, exact, table_of({{0, exact.numel(), key, index}}, at::kCPU), 0, step, stream);
  return result;
}

TEST(StochasticRounding, HasTheExactNumberAsItsMean) {
  constexpr int64_t kCount = 200'000;
  const double ulp = 1.0 / 128;
  for (const double share : {0.0, 0.01, 0.3, 0.5, 0.99}) {
    for (const double sign : {1.0, -1.0}) {
      const at::Tensor result = rounded(at::full({kCount}, sign * (1 + share * ulp), at::kFloat), 5);
      const at::Tensor steps = (result.to(at::kDouble) * sign - 1) / ulp;  // 0 or 1
      EXPECT_TRUE(((steps == 0) | (steps == 1)).all().item<bool>());
      EXPECT_NEAR(steps.mean().item<double>(), share, 5 * std::sqrt(share * (1 - share) / kCount));
    }
  }
}

TEST(StochasticRounding, LeavesWhatBf16Has) {
  const at::Tensor values = random_tensor({1000}, 1, at::kBFloat16);
  EXPECT_TRUE(at::equal(rounded(values.to(at::kFloat), 3), values));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor special = rounded(at::tensor({0.0f, kInfinity, -kInfinity, std::nanf("")}), 3);
  EXPECT_EQ(special[0].item<float>(), 0);
  EXPECT_EQ(special[1].item<float>(), kInfinity);
  EXPECT_EQ(special[2].item<float>(), -kInfinity);
  EXPECT_TRUE(special[3].isnan().item<bool>());
}

TEST(StochasticRounding, DependsOnKeyIndexStepAndStreamAlone) {
  const at::Tensor exact = random_tensor({1000}, 2, at::kFloat), full = rounded(exact, 3);
  for (const int64_t begin : {1, 7, 8, 500}) {
    EXPECT_TRUE(at::equal(rounded(exact.slice(0, begin), 3, begin), full.slice(0, begin))) << begin;
  }
  EXPECT_FALSE(at::equal(rounded(exact, 4), full));
  EXPECT_FALSE(at::equal(rounded(exact, 3, 8), full));
  EXPECT_FALSE(at::equal(rounded(exact, 3, 0, 2), full));
  EXPECT_FALSE(at::equal(rounded(exact, 3, 0, 1, 1), full));
}

TEST(StochasticRounding, LeavesPaddingAlone) {
  const at::Tensor result = at::full({10}, 5, at::kBFloat16);
  round_stochastically(result, at::full({10}, 2, at::kFloat), table_of({{0, 3, 1, 0}, {6, 2, 1, 3}}, at::kCPU), 0, 1,
                       0);
  EXPECT_TRUE(at::equal(result.to(at::kLong), at::tensor({2, 2, 2, 5, 5, 5, 2, 2, 5, 5}, at::kLong)));
}

TEST(StochasticRounding, RefusesWhatItCannotRound) {
  EXPECT_THROW(round_stochastically(at::zeros({1}), at::zeros({1}), table_of({}, at::kCPU), 0, 1, 0),
               std::invalid_argument);
}

/// One rank's part of a model on tp x dp ranks, in bf16; the global index decides values and gradients.
struct RankOfMesh {
  RankOfMesh(int tp, int tp_rank, int dp, int dp_rank) {
    std::vector<int64_t> ranks(tp);
    std::iota(ranks.begin(), ranks.end(), 0);
    const Group group(dry_run_backend(tp_rank, tp), "tp", ranks, "");
    const at::TensorOptions options = at::TensorOptions().dtype(at::kBFloat16);
    add(sharded_parameter("rows", {301, 37}, 0, group, {}, options));
    add(sharded_parameter("columns", {301, 38}, 1, group, {}, options));
    add(full_parameter("norm", {331}, {}, options));
    std::vector<int64_t> shards(dp);
    std::iota(shards.begin(), shards.end(), 0);
    const FsdpOptions sharding{.mode = ShardingMode::ShardOptimizer,
                               .shards = Group(dry_run_backend(dp_rank, dp), "dp", shards, "")};
    const UnitSpec unit{"unit", {parameters[0].get(), parameters[1].get(), parameters[2].get()}};
    fsdp = std::make_unique<Fsdp>(std::vector{unit}, sharding);
    for (const auto& parameter : parameters) write(*parameter, parameter->tensor.detach(), 1);
  }

  void add(Parameter parameter) { parameters.push_back(std::make_unique<Parameter>(std::move(parameter))); }

  static void write(const Parameter& parameter, const at::Tensor& into, uint64_t seed) {
    at::Tensor full = random_tensor(parameter.global_shape, seed);
    for (size_t dim = 0; dim < parameter.box.start.size(); ++dim) {
      full = full.narrow(static_cast<int64_t>(dim), parameter.box.start[dim], parameter.box.size[dim]);
    }
    Parameter view = parameter;
    view.tensor = into;
    view.valid().copy_(full);
  }

  void train(const OptimizerOptions& recipe) {
    const auto optimizer = make_optimizer(recipe, {{fsdp.get(), {}}}, StochasticRounding(42));
    for (uint64_t step = 1; step <= 3; ++step) {
      for (const auto& parameter : parameters) write(*parameter, parameter->tensor.grad(), 10 * step);
      optimizer->step(1e-2);
    }
  }

  std::vector<std::unique_ptr<Parameter>> parameters;
  std::unique_ptr<Fsdp> fsdp;
};

/// Trains, and returns every parameter, assembled from the shards of all ranks.
std::vector<at::Tensor> train_on_mesh(int tp, int dp, const OptimizerOptions& recipe) {
  std::vector<at::Tensor> full;
  for (int t = 0; t < tp; ++t) {
    at::Tensor flat;
    for (int d = 0; d < dp; ++d) {
      RankOfMesh rank(tp, t, dp, d);
      rank.train(recipe);
      const FlatBuffer& buffer = rank.fsdp->units()[0].buffers()[0];
      flat = d == 0 ? buffer.shard_values().clone() : at::cat({flat, buffer.shard_values()});
      if (d + 1 < dp) continue;
      for (size_t i = 0; i < rank.parameters.size(); ++i) {
        const Parameter& parameter = *rank.parameters[i];
        if (t == 0) full.push_back(at::zeros(parameter.global_shape, at::kBFloat16));
        for (const Segment& segment : buffer.segments()) {
          if (segment.parameter != &parameter) continue;
          Parameter view = parameter;
          view.tensor = flat.narrow(0, segment.offset, segment.numel).view(parameter.shape);
          at::Tensor target = full[i];
          for (size_t dim = 0; dim < parameter.box.start.size(); ++dim) {
            target = target.narrow(static_cast<int64_t>(dim), parameter.box.start[dim], parameter.box.size[dim]);
          }
          target.copy_(view.valid());
        }
      }
    }
  }
  return full;
}

TEST(StochasticRounding, EveryMeshRoundsAlike) {
  for (const char* name : {"adamw", "sgd"}) {
    OptimizerOptions recipe;
    recipe.name = name;
    recipe.momentum = 0.9;
    recipe.weight_decay = 0.1;
    recipe.decay = DecayScope::Matrices;
    const std::vector<at::Tensor> alone = train_on_mesh(1, 1, recipe);
    for (const auto& [tp, dp] : {std::pair{1, 2}, {2, 1}, {2, 2}, {3, 4}}) {
      const std::vector<at::Tensor> mesh = train_on_mesh(tp, dp, recipe);
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(at::equal(mesh[i], alone[i])) << name << " tp=" << tp << " dp=" << dp << " parameter " << i;
      }
    }
  }
}

/// A weight of 1 with steps of 1e-4, which rounding to the nearest bf16 number loses: below 1 they are 2^-8 apart.
TEST(StochasticRounding, TinyUpdatesAreMadeInTheMean) {
  constexpr int kSteps = 300;
  for (const char* name : {"adamw", "sgd"}) {
    OptimizerOptions recipe;
    recipe.name = name;
    for (const bool stochastic : {false, true}) {
      Parameter parameter = full_parameter("w", {4096}, {}, at::TensorOptions().dtype(at::kBFloat16));
      Fsdp fsdp({UnitSpec{"unit", {&parameter}}}, {});
      parameter.tensor.detach().fill_(1);
      const auto optimizer =
          make_optimizer(recipe, {{&fsdp, {}}}, stochastic ? std::optional(StochasticRounding(1)) : std::nullopt);
      for (int step = 0; step < kSteps; ++step) {
        parameter.tensor.mutable_grad().fill_(1);
        optimizer->step(1e-4);
      }
      const double mean = parameter.tensor.detach().to(at::kDouble).mean().item<double>();
      EXPECT_NEAR(mean, stochastic ? 1 - kSteps * 1e-4 : 1, stochastic ? 1e-3 : 0) << name;
    }
  }
}

}  // namespace
}  // namespace meshtrain
