#include "fsdp/fsdp.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <stdexcept>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "mesh/forwarding.h"
#include "tests/fsdp/chain.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using testing::backward_of_step;
using testing::Chain;
using testing::Hosts;
using testing::input_of;
using testing::kHosts;
using testing::kMicroBatches;
using testing::kWays;
using testing::Way;
using testing::world;
using testing::world_on;

constexpr int kSteps = 3;
constexpr double kRate = 0.01;

/// Computes, on this rank alone, the model after each step of gradient descent on every rank's micro-batches.
void step_alone(const Chain& chain) {
  for (const auto& weight : chain.weights) weight->tensor.mutable_grad() = at::Tensor();
  for (int rank = 0; rank < world().size(); ++rank) {
    for (int i = 0; i < kMicroBatches; ++i) chain.loss(input_of(rank, i)).backward();
  }
  const at::NoGradGuard no_grad;
  for (const auto& weight : chain.weights) {
    if (weight->tensor.requires_grad()) weight->tensor.sub_(weight->tensor.grad(), kRate);
  }
}

void update(Fsdp& fsdp) {
  const at::NoGradGuard no_grad;
  for (const Unit& unit : fsdp.units()) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      if (buffer.trainable()) at::Tensor(buffer.shard_values()).sub_(buffer.shard_gradients(), kRate);
    }
  }
  fsdp.shards_changed();
}

/// Expects the gradients and values of `fsdp` to equal those of `alone`.
void expect_equal(Fsdp& fsdp, const Chain& alone) {
  size_t num_gradients = 0;
  fsdp.visit_gradients([&](const Parameter& parameter) {
    for (const auto& weight : alone.weights) {
      if (weight->name != parameter.name) continue;
      EXPECT_LT((parameter.tensor - weight->tensor.grad()).abs().max().item<double>(), 1e-12) << parameter.name;
      ++num_gradients;
    }
  });
  EXPECT_EQ(num_gradients, std::count_if(alone.weights.begin(), alone.weights.end(),
                                         [](const auto& weight) { return weight->tensor.requires_grad(); }));
  update(fsdp);
  size_t i = 0;
  fsdp.visit_values([&](const Unit& unit) {
    const at::Tensor own = unit.parameters()[0]->tensor.detach(), expected = alone.weights[i++]->tensor.detach();
    EXPECT_LT((own - expected).abs().max().item<double>(), 1e-12) << unit.name();
  });
}

/// The transport of a group that moves nothing: adds the number of elements of each sum to a list.
class SeenSums final : public ForwardingBackend {
 public:
  explicit SeenSums(std::vector<int64_t>& numels) : ForwardingBackend(dry_run_backend(0, 2)), numels_(numels) {}
  Work issue(const Collective& collective) override {
    numels_.push_back(collective.output.numel());
    return inner()->issue(collective);
  }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override { return part; }

 private:
  std::vector<int64_t>& numels_;
};

/// Returns a group over which gradients seem to remain to be summed. `reduced`: gets the number of elements of each
/// shard when its reduction is complete.
Group seen_by(std::vector<int64_t>& reduced) {
  return Group(std::make_shared<SeenSums>(reduced), "remaining", {0, 1}, "rank 0");
}

class FsdpWays : public ::testing::TestWithParam<std::tuple<Way, bool, Hosts>> {};

TEST_P(FsdpWays, ComputeWhatOneRankComputes) {
  const auto [way, tied, hosts] = GetParam();
  const Chain chain(tied), alone(tied);
  std::vector<int64_t> reduced, backwards;
  FsdpOptions options = way.options(world_on(hosts));
  options.remaining = seen_by(reduced);
  Fsdp fsdp(chain.units(), options);
  for (size_t unit = chain.weights.size(); unit > 0;) {
    backwards.push_back(fsdp.units()[--unit].buffers()[0].shard().numel);
  }
  for (int step = 0; step < kSteps; ++step) {
    reduced.clear();
    backward_of_step(chain, fsdp);
    EXPECT_EQ(reduced, backwards);
    step_alone(alone);
    expect_equal(fsdp, alone);
  }
}

TEST_P(FsdpWays, ComputeTheSameFromTheDisk) {
  const auto [way, tied, hosts] = GetParam();
  const testing::ScratchFolder folder(world());
  const Chain chain(tied), alone(tied);
  FsdpOptions options = way.options(world_on(hosts));
  options.memory = ShardMemory::on_disk(folder.path());
  Fsdp fsdp(chain.units(), options);
  for (int step = 0; step < kSteps; ++step) {
    backward_of_step(chain, fsdp);
    step_alone(alone);
    expect_equal(fsdp, alone);
  }
}

// The first unit needs no backward; the last has nothing to reduce.
TEST_P(FsdpWays, LeaveFrozenParametersAlone) {
  const auto [way, tied, hosts] = GetParam();
  const Chain chain(tied), alone(tied);
  for (const Chain* each : {&chain, &alone}) {
    for (const size_t i : {0u, 4u}) each->weights[i]->tensor.set_requires_grad(false);
  }
  Fsdp fsdp(chain.units(), way.options(world_on(hosts)));
  for (int step = 0; step < kSteps; ++step) {
    backward_of_step(chain, fsdp);
    step_alone(alone);
    expect_equal(fsdp, alone);
  }
  for (const size_t i : {0u, 4u}) EXPECT_FALSE(chain.weights[i]->tensor.grad().defined());
}

TEST_P(FsdpWays, EvaluateBetweenSteps) {
  const auto [way, tied, hosts] = GetParam();
  const Chain chain(tied), alone(tied);
  Fsdp fsdp(chain.units(), way.options(world_on(hosts)));
  for (int step = 0; step < 2; ++step) {
    {
      const at::NoGradGuard no_grad;
      const at::Tensor own = chain.loss(input_of(7, 7), fsdp), expected = alone.loss(input_of(7, 7));
      EXPECT_NEAR(own.item<double>(), expected.item<double>(), 1e-12 * expected.item<double>());
    }
    backward_of_step(chain, fsdp);
    step_alone(alone);
    update(fsdp);
  }
}

TEST_P(FsdpWays, TakeTheValuesThatAreWritten) {
  const auto [way, tied, hosts] = GetParam();
  const Chain chain(tied);
  Fsdp fsdp(chain.units(), way.options(world_on(hosts)));
  fsdp.write_values([](const Parameter& parameter) {
    EXPECT_TRUE(parameter.tensor.eq(0).all().item<bool>());
    parameter.tensor.fill_(static_cast<double>(parameter.name.back()));
  });
  fsdp.visit_values([](const Unit& unit) {
    const Parameter& parameter = *unit.parameters()[0];
    EXPECT_TRUE(parameter.tensor.eq(static_cast<double>(parameter.name.back())).all().item<bool>()) << unit.name();
  });
}

// Parameters are fp32, and their shards fp64, changed by less than fp32 can represent.
TEST_P(FsdpWays, KeepShardsInAnotherDtype) {
  const auto [way, tied, hosts] = GetParam();
  const Chain alone(tied, at::kFloat);
  FsdpOptions options = way.options(world_on(hosts));
  options.shard_dtype = at::kDouble;
  for (const auto reduce_dtype : {at::kFloat, at::kDouble}) {
    const Chain chain(tied, at::kFloat);
    options.reduce_dtype = reduce_dtype;
    Fsdp fsdp(chain.units(), options);
    std::vector<at::Tensor> expected;
    fsdp.visit_shards([&](const Parameter& parameter) { expected.push_back(parameter.tensor.clone()); });
    for (int step = 0; step < 3; ++step) {
      fsdp.begin_step();
      for (int i = 0; i < kMicroBatches; ++i) {
        const at::Tensor loss = chain.loss(input_of(world().rank(), i).to(at::kFloat), fsdp);
        fsdp.begin_backward(i + 1 == kMicroBatches);
        loss.backward();
        fsdp.end_backward();
      }
      for (const auto& weight : alone.weights) weight->tensor.mutable_grad() = at::Tensor();
      for (int rank = 0; rank < world().size(); ++rank) {
        for (int i = 0; i < kMicroBatches; ++i) alone.loss(input_of(rank, i).to(at::kFloat)).backward();
      }
      for (const Unit& unit : fsdp.units()) {
        for (const FlatBuffer& buffer : unit.buffers()) {
          EXPECT_EQ(buffer.shard_gradients().scalar_type(), at::kDouble);
          EXPECT_EQ(buffer.gradients().scalar_type(), reduce_dtype) << "in which micro-batches add up";
          at::Tensor(buffer.shard_values()).sub_(buffer.shard_gradients(), 1e-9);
        }
      }
      fsdp.shards_changed();
      size_t i = 0;
      fsdp.visit_shards([&](const Parameter& parameter) {
        expected[i].sub_(alone.weights[i]->tensor.grad().to(at::kDouble), 1e-9);
        EXPECT_LT((parameter.tensor - expected[i]).abs().max().item<double>(), 1e-12) << parameter.name;
        expected[i++] = parameter.tensor.clone();
      });
      i = 0;
      fsdp.visit_values([&](const Unit& unit) {
        EXPECT_TRUE(at::equal(unit.parameters()[0]->tensor, expected[i++].to(at::kFloat))) << unit.name();
      });
    }
    // A rounded shard that is written together with its shard is not rounded again.
    bool any = false;
    for (const Unit& unit : fsdp.units()) {
      for (const FlatBuffer& buffer : unit.buffers()) {
        const at::Tensor rounded = buffer.rounded_shard();
        if (!rounded.defined()) continue;
        any = true;
        at::Tensor(rounded).copy_(buffer.shard_values()).add_(1);
      }
    }
    fsdp.shards_changed({.rounded = true});
    size_t i = 0;
    fsdp.visit_values([&](const Unit& unit) {
      const at::Tensor shards = expected[i++].to(at::kFloat), values = unit.parameters()[0]->tensor;
      EXPECT_TRUE(at::equal(values, any ? shards + 1 : shards)) << unit.name();
    });
  }
}

// Frozen parameters are fp32, and their shards fp64, of values that fp32 cannot represent.
TEST_P(FsdpWays, KeepFrozenShardsInAnotherDtype) {
  const auto [way, tied, hosts] = GetParam();
  const Chain chain(tied, at::kFloat);
  for (const size_t i : {0u, 2u}) chain.weights[i]->tensor.set_requires_grad(false);
  FsdpOptions options = way.options(world_on(hosts));
  options.shard_dtype = at::kDouble;
  Fsdp fsdp(chain.units(), options);
  const auto value_of = [](const Parameter& parameter) { return 1. / static_cast<double>(parameter.name.back()); };
  fsdp.write_values([&](const Parameter& parameter) { parameter.tensor.fill_(value_of(parameter)); });
  for (int step = 0; step < 2; ++step) {
    fsdp.begin_step();
    const at::Tensor loss = chain.loss(input_of(world().rank(), 0).to(at::kFloat), fsdp);
    fsdp.begin_backward(/*last=*/true);
    loss.backward();
    fsdp.end_backward();
    fsdp.shards_changed({.rounded = step == 1});
    fsdp.visit_shards([&](const Parameter& parameter) {
      EXPECT_EQ(parameter.tensor.scalar_type(), at::kDouble);
      EXPECT_TRUE(parameter.tensor.eq(value_of(parameter)).all().item<bool>()) << parameter.name;
    });
    fsdp.visit_values([&](const Unit& unit) {
      const Parameter& parameter = *unit.parameters()[0];
      EXPECT_TRUE(parameter.tensor.eq(static_cast<float>(value_of(parameter))).all().item<bool>()) << unit.name();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, FsdpWays,
                         ::testing::Combine(::testing::ValuesIn(kWays), ::testing::Bool(), ::testing::ValuesIn(kHosts)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + (std::get<1>(test.param) ? "Tied_" : "_") +
                                  name_of(std::get<2>(test.param));
                         });

TEST(Fsdp, NoShardNeedsNoRun) {
  const Chain chain;
  FsdpOptions options;
  options.replicas = world();
  Fsdp fsdp(chain.units(), options);
  fsdp.begin_step();
  fsdp.begin_backward(true);
  chain.loss(input_of(0, 0)).backward();
  fsdp.end_backward();
  const Chain alone;
  alone.loss(input_of(0, 0)).backward();
  EXPECT_LT(testing::relative_error(chain.weights[2]->tensor.grad(),
                                    alone.weights[2]->tensor.grad() * static_cast<double>(world().size())),
            1e-12);
}

TEST(Fsdp, ReducesAUnitThatWasNotUsed) {
  for (const Way& way : kWays) {
    const Chain chain;
    std::vector<int64_t> reduced;
    FsdpOptions options = way.options(world());
    options.remaining = seen_by(reduced);
    Fsdp fsdp(chain.units(), options);
    fsdp.begin_step();
    const at::Tensor x = fsdp.run(0, [&] { return at::matmul(input_of(0, 0), chain.weights[0]->tensor); });
    const at::Tensor loss = fsdp.run(3, [&] { return at::matmul(x, chain.weights[3]->tensor).sum(); });
    fsdp.begin_backward(true);
    loss.backward();
    fsdp.end_backward();
    EXPECT_EQ(reduced.size(), 5u) << way.name;
    fsdp.visit_gradients([&](const Parameter& parameter) {
      const bool used = parameter.name == "weight 0" || parameter.name == "weight 3";
      EXPECT_EQ(parameter.tensor.abs().max().item<double>() > 0, used) << way.name << parameter.name;
    });
  }
}

TEST(Fsdp, ReducesAUnitWhileTheOnesBeforeItAreInBackward) {
  for (const Way& way : kWays) {
    const Chain chain;
    std::vector<int64_t> reduced;
    size_t before_first = 0;
    FsdpOptions options = way.options(world());
    options.remaining = seen_by(reduced);
    Fsdp fsdp(chain.units(), options);
    fsdp.begin_step();
    const at::Tensor loss = chain.loss(input_of(0, 0), [&](size_t unit, const auto& forward) {
      const at::Tensor y = fsdp.run(unit, forward);
      if (unit == 0) y.register_hook([&](const at::Tensor&) { before_first = reduced.size(); });
      return y;
    });
    fsdp.begin_backward(true);
    loss.backward();
    fsdp.end_backward();
    EXPECT_EQ(reduced.size(), 5u);
    EXPECT_GE(before_first, 2u) << way.name << ": nothing was reduced before the backward reached the first unit";
  }
}

TEST(Fsdp, WholeParametersMayOutliveIt) {
  const Chain chain;
  {
    FsdpOptions options;
    options.replicas = world();
    Fsdp fsdp(chain.units(), options);
  }
  EXPECT_NO_THROW(chain.loss(input_of(0, 0)).backward());
}

// On the Meta device, which stands for a GPU.
TEST(Fsdp, RefusesStateOnTheDeviceBesideOffloadedShards) {
  Parameter parameter = full_parameter("w", {4}, {}, at::TensorOptions(at::kMeta));
  const std::vector<UnitSpec> units = {{"unit", {&parameter}}};
  FsdpOptions options;
  options.memory = ShardMemory::on_host();
  options.state_memory = ShardMemory();
  EXPECT_THROW(Fsdp(units, options), std::invalid_argument);
  std::swap(options.memory, *options.state_memory);
  EXPECT_TRUE(Fsdp(units, options).pages_state());
}

TEST(Fsdp, RefusesUnitsThatItCannotSchedule) {
  const Chain chain;
  std::vector<UnitSpec> units = chain.units();
  units[2].whole_step = true;
  EXPECT_THROW(Fsdp(units, {}), std::invalid_argument);
  units[2] = {"nothing", {}};
  EXPECT_THROW(Fsdp(units, {}), std::invalid_argument);
}

}  // namespace
}  // namespace meshtrain
