#include "runtime/training/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <set>

#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "runtime/training/optimizer/rules.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;

/// A unit of a matrix, a vector and a matrix, each with values and gradients.
struct Fixture {
  explicit Fixture(at::ScalarType dtype = at::kDouble, const std::set<std::string>& frozen = {}) {
    const at::TensorOptions options = at::TensorOptions().dtype(dtype);
    for (auto& [name, shape] :
         std::vector<std::pair<std::string, std::vector<int64_t>>>{{"a", {3, 5}}, {"b", {7}}, {"c", {2, 2}}}) {
      parameters.push_back(std::make_unique<Parameter>(full_parameter(name, shape, {}, options)));
      parameters.back()->tensor.set_requires_grad(!frozen.contains(name));
    }
    const UnitSpec unit{"unit", {parameters[0].get(), parameters[1].get(), parameters[2].get()}};
    fsdp = std::make_unique<Fsdp>(std::vector{unit}, FsdpOptions{});
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i]->tensor.detach().copy_(random_tensor(parameters[i]->shape, 1 + i));
    }
  }

  void set_gradients(uint64_t seed) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i]->tensor.requires_grad()) continue;
      parameters[i]->tensor.mutable_grad().copy_(random_tensor(parameters[i]->shape, 100 * seed + i));
    }
  }

  std::vector<ParameterGroup> groups() const { return {{fsdp.get(), {}}}; }
  const FlatBuffer& buffer() const { return fsdp->units()[0].buffers()[0]; }

  std::vector<std::unique_ptr<Parameter>> parameters;
  std::unique_ptr<Fsdp> fsdp;
};

OptimizerOptions options_of(const std::string& name, DecayScope decay) {
  OptimizerOptions options;
  options.name = name;
  options.weight_decay = 0.1;
  options.decay = decay;
  return options;
}

/// Computes one parameter by the formula, without flat buffers.
at::Tensor adamw_by_hand(at::Tensor w, const std::vector<at::Tensor>& gradients, double rate, double decay) {
  at::Tensor m = at::zeros_like(w), v = at::zeros_like(w);
  for (size_t t = 1; t <= gradients.size(); ++t) {
    const at::Tensor& g = gradients[t - 1];
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const at::Tensor corrected_m = m / (1 - std::pow(0.9, t)), corrected_v = v / (1 - std::pow(0.999, t));
    w = w - rate * decay * w - rate * corrected_m / (corrected_v.sqrt() + 1e-8);
  }
  return w;
}

TEST(Optimizer, AdamWIsTheFormulaForEveryParameter) {
  for (const DecayScope decay : {DecayScope::All, DecayScope::Matrices}) {
    Fixture fixture;
    std::vector<at::Tensor> before;
    for (const auto& parameter : fixture.parameters) before.push_back(parameter->tensor.detach().clone());
    const auto optimizer = make_optimizer(options_of("adamw", decay), fixture.groups());
    std::vector<std::vector<at::Tensor>> gradients(3);
    for (int step = 1; step <= 4; ++step) {
      fixture.set_gradients(step);
      for (size_t i = 0; i < 3; ++i) gradients[i].push_back(fixture.parameters[i]->tensor.grad().clone());
      optimizer->step(1e-2);
    }
    for (size_t i = 0; i < 3; ++i) {
      const bool decays = decay == DecayScope::All || before[i].dim() > 1;
      const at::Tensor wanted = adamw_by_hand(before[i], gradients[i], 1e-2, decays ? 0.1 : 0);
      EXPECT_LT((fixture.parameters[i]->tensor.detach() - wanted).abs().max().item<double>(), 1e-14)
          << fixture.parameters[i]->name << " decay " << static_cast<int>(decay);
    }
  }
}

TEST(Optimizer, SgdWithMomentumAndDecay) {
  Fixture fixture;
  OptimizerOptions sgd = options_of("sgd", DecayScope::Matrices);
  sgd.momentum = 0.5;
  std::vector<at::Tensor> wanted, velocity(3);
  for (const auto& parameter : fixture.parameters) wanted.push_back(parameter->tensor.detach().clone());
  const auto optimizer = make_optimizer(sgd, fixture.groups());
  for (int step = 1; step <= 3; ++step) {
    fixture.set_gradients(step);
    for (size_t i = 0; i < 3; ++i) {
      at::Tensor gradient = fixture.parameters[i]->tensor.grad() + (wanted[i].dim() > 1 ? 0.1 : 0.0) * wanted[i];
      velocity[i] = velocity[i].defined() ? 0.5 * velocity[i] + gradient : gradient;
      wanted[i] = wanted[i] - 1e-2 * velocity[i];
    }
    optimizer->step(1e-2);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LT((fixture.parameters[i]->tensor.detach() - wanted[i]).abs().max().item<double>(), 1e-14);
  }
}

// The factor gives the bits of gradients multiplied before; in bf16 also with stochastic rounding.
TEST(Optimizer, TakesAFactorOfTheGradients) {
  for (const char* name : {"adamw", "sgd", "muon"}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      Fixture before(dtype), along(dtype);
      std::optional<StochasticRounding> rounding;
      if (dtype == at::kBFloat16 && std::string(name) != "muon") rounding.emplace(7);
      OptimizerOptions of = options_of(name, DecayScope::All);
      of.momentum = 0.5;
      const auto by_hand = make_optimizer(of, before.groups(), rounding),
                 by_factor = make_optimizer(of, along.groups(), rounding);
      for (int step = 1; step <= 3; ++step) {
        const at::Tensor factor =
            at::full({}, 0.37 / step, at::kDouble);  // a constant factor does not change muon's result
        before.set_gradients(step);
        along.set_gradients(step);
        for (const auto& parameter : before.parameters) parameter->tensor.mutable_grad().mul_(factor);
        by_hand->step(1e-2);
        UpdateInputs inputs = by_factor->inputs_of(1e-2);
        inputs.gradient_factor = factor;
        by_factor->step(inputs);
      }
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(at::equal(before.parameters[i]->tensor, along.parameters[i]->tensor)) << name << " " << dtype;
      }
    }
  }
}

// AdamW's update writes the rounded weights that units compute with, when their memory is permanent; other optimizers
// leave that to Fsdp.
TEST(Optimizer, AdamWWritesRoundedWeightsToo) {
  std::vector<Parameter> parameters;
  for (const char* name : {"a", "b"}) {
    parameters.push_back(full_parameter(name, {5, 3}, {}, at::TensorOptions().dtype(at::kBFloat16)));
    parameters.back().tensor.set_requires_grad(true);
  }
  Fsdp fsdp({UnitSpec{"unit", {&parameters[0], &parameters[1]}}}, {.shard_dtype = at::kFloat});
  const FlatBuffer& buffer = fsdp.units()[0].buffers()[0];
  at::Tensor(buffer.shard_values()).copy_(random_tensor({buffer.shard().numel}, 1));
  at::Tensor(buffer.shard_gradients()).copy_(random_tensor({buffer.shard().numel}, 2));
  for (const char* name : {"adamw", "sgd", "muon"}) {
    const auto optimizer = make_optimizer(options_of(name, DecayScope::Matrices), {{&fsdp, {}}});
    at::Tensor(buffer.rounded_shard()).fill_(7);
    optimizer->step(1e-1);
    EXPECT_EQ(optimizer->rounds(), std::string(name) == "adamw");
    for (const Segment& segment : buffer.segments()) {
      const at::Tensor wanted = buffer.shard_values().narrow(0, segment.offset, segment.numel).to(at::kBFloat16);
      EXPECT_EQ(at::equal(segment.parameter->tensor.flatten(), wanted), optimizer->rounds()) << name;
    }
  }
}

// A skipped update does not change the next one, whatever the gradients are.
TEST(Optimizer, ASkippedUpdateLeavesNoTrace) {
  for (const char* name : {"adamw", "sgd", "muon"}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      Fixture with(dtype), without(dtype);
      std::optional<StochasticRounding> rounding;
      if (dtype == at::kBFloat16 && std::string(name) != "muon") rounding.emplace(7);
      OptimizerOptions of = options_of(name, DecayScope::All);
      of.momentum = 0.5;
      const auto skips = make_optimizer(of, with.groups(), rounding),
                 goes_on = make_optimizer(of, without.groups(), rounding);
      UpdateInputs inputs = skips->inputs_of(1e-2);
      inputs.gradient_factor = at::full({}, NAN, at::kDouble);
      for (int step = 1; step <= 3; ++step) {
        with.set_gradients(10 + step);
        const at::Tensor gradient = with.parameters[0]->tensor.grad().clone();
        inputs.skip = at::scalar_tensor(true, at::kBool);
        skips->step(inputs);
        EXPECT_TRUE(at::equal(with.parameters[0]->tensor.grad(), gradient)) << name;
        UpdateInputs now = skips->inputs_of(1e-2);
        now.skip = at::scalar_tensor(false, at::kBool);
        with.set_gradients(step);
        without.set_gradients(step);
        skips->step(now);
        goes_on->step(1e-2);
      }
      EXPECT_EQ(skips->num_steps(), 3) << name;
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(at::equal(with.parameters[i]->tensor, without.parameters[i]->tensor)) << name << " " << dtype;
      }
    }
  }
}

TEST(Optimizer, PaddingStaysZero) {
  Fixture fixture;
  const auto optimizer = make_optimizer(options_of("adamw", DecayScope::All), fixture.groups());
  fixture.set_gradients(1);
  optimizer->step(1e-2);
  const FlatBuffer& buffer = fixture.buffer();
  at::Tensor rest = buffer.values().clone();
  for (const Segment& segment : buffer.segments()) rest.narrow(0, segment.offset, segment.numel).zero_();
  EXPECT_EQ(rest.abs().max().item<double>(), 0);
}

TEST(Optimizer, RangesAreFew) {
  Fixture fixture;
  const FlatBuffer& buffer = fixture.buffer();
  EXPECT_EQ(update_ranges(buffer, options_of("adamw", DecayScope::All)).size(), 1u);
  EXPECT_EQ(update_ranges(buffer, options_of("adamw", DecayScope::Matrices)).size(), 3u);
  OptimizerOptions same = options_of("adamw", DecayScope::All);
  same.groups = {{"a", 1, 0.1}, {"b", 2, {}}};
  EXPECT_EQ(update_ranges(buffer, same).size(), 3u);
  same.groups = {{"*", 2, 0}};
  EXPECT_EQ(update_ranges(buffer, same).size(), 1u);
}

// A group's parameters move as in a separate run with its learning rate and weight decay.
TEST(Optimizer, GroupsAreRunsOfTheirOwn) {
  for (const char* name : {"adamw", "sgd"}) {
    OptimizerOptions grouped = options_of(name, DecayScope::Matrices);
    grouped.groups = {{"a", 0.5, 0.3}, {"[ab]", 3, 0.2}, {"*", 1, {}}};
    const std::vector<std::pair<double, double>> rate_and_decay = {{0.5, 0.3}, {3, 0.2}, {1, 0.1}};
    Fixture fixture;
    const auto optimizer = make_optimizer(grouped, fixture.groups());
    std::vector<std::unique_ptr<Fixture>> alone;
    std::vector<std::unique_ptr<Optimizer>> optimizers;
    for (const auto& [rate, decay] : rate_and_decay) {
      OptimizerOptions one = options_of(name, DecayScope::All);
      one.weight_decay = decay;
      alone.push_back(std::make_unique<Fixture>());
      optimizers.push_back(make_optimizer(one, alone.back()->groups()));
    }
    for (int step = 1; step <= 3; ++step) {
      fixture.set_gradients(step);
      optimizer->step(1e-2);
      for (size_t i = 0; i < 3; ++i) {
        alone[i]->set_gradients(step);
        optimizers[i]->step(1e-2 * rate_and_decay[i].first);
      }
    }
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor difference = fixture.parameters[i]->tensor - alone[i]->parameters[i]->tensor;
      EXPECT_LT(difference.abs().max().item<double>(), 1e-15) << name << " " << i;
    }
  }
}

TEST(Optimizer, FrozenParametersHaveNeitherStateNorGradientNorMovement) {
  for (const char* name : {"adamw", "sgd", "muon"}) {
    OptimizerOptions with_momentum = options_of(name, DecayScope::All);
    with_momentum.momentum = 0.9;
    const auto state_bytes = [&](const Fixture& fixture) {
      HostMemory& memory = HostMemory::counted();
      const int64_t before = memory.live();
      const auto optimizer = make_optimizer(with_momentum, fixture.groups());
      return memory.live() - before;
    };
    Fixture all, some(at::kDouble, {"a", "b"});
    const at::Tensor a = some.parameters[0]->tensor.detach().clone(), b = some.parameters[1]->tensor.detach().clone();
    EXPECT_FALSE(some.parameters[0]->tensor.grad().defined());
    EXPECT_LT(state_bytes(some), state_bytes(all)) << name;
    const auto optimizer = make_optimizer(with_momentum, some.groups());
    some.set_gradients(1);
    const at::Tensor c = some.parameters[2]->tensor.detach().clone();
    optimizer->step(1e-1);
    EXPECT_TRUE(at::equal(some.parameters[0]->tensor.detach(), a));
    EXPECT_TRUE(at::equal(some.parameters[1]->tensor.detach(), b));
    EXPECT_FALSE(at::equal(some.parameters[2]->tensor.detach(), c));
  }
}

TEST(Optimizer, PureBf16KeepsItsStateInBf16) {
  Fixture fixture(at::kBFloat16);
  const auto optimizer = make_optimizer(options_of("adamw", DecayScope::All), fixture.groups());
  const at::Tensor before = fixture.parameters[0]->tensor.detach().clone();
  fixture.set_gradients(1);
  optimizer->step(1e-1);
  EXPECT_FALSE(at::equal(fixture.parameters[0]->tensor.detach(), before));
}

// In bf16 the second moment cannot decay by 0.999: after smaller gradients it stays as it was.
TEST(Optimizer, StateInFp32DecaysBesideWeightsInBf16) {
  const auto second_moment_after = [](std::optional<at::ScalarType> state_dtype) {
    Fixture fixture(at::kBFloat16);
    OptimizerOptions options = options_of("adamw", DecayScope::All);
    options.state_dtype = state_dtype;
    const auto optimizer = make_optimizer(options, fixture.groups());
    for (int step = 1; step <= 3000; ++step) {
      for (const auto& parameter : fixture.parameters) parameter->tensor.mutable_grad().fill_(step <= 500 ? 1 : 0.125);
      optimizer->step(1e-4);
    }
    const ShardTensor state = optimizer->state().at(1);
    EXPECT_EQ(state.name, "exp_avg_sq");
    return state.values[0].item<double>();
  };
  double wanted = 0;
  for (int step = 1; step <= 3000; ++step) wanted = 0.999 * wanted + 0.001 * (step <= 500 ? 1 : 0.125 * 0.125);
  EXPECT_NEAR(second_moment_after(at::kFloat), wanted, 1e-3 * wanted);
  EXPECT_GT(std::abs(second_moment_after({}) - wanted), 0.5 * wanted) << "bf16";
}

// Weights are those of an update in fp32 that starts from the same numbers, rounded once.
TEST(Optimizer, StateInFp32UpdatesInFp32) {
  for (const char* name : {"adamw", "sgd", "muon"}) {
    Fixture halves(at::kBFloat16), wide(at::kFloat);
    OptimizerOptions of = options_of(name, DecayScope::All);
    of.momentum = 0.5;
    of.state_dtype = at::kFloat;
    const auto own = make_optimizer(of, halves.groups()), exact = make_optimizer(of, wide.groups());
    for (int step = 1; step <= 3; ++step) {
      halves.set_gradients(step);
      for (size_t i = 0; i < 3; ++i) {
        wide.parameters[i]->tensor.detach().copy_(halves.parameters[i]->tensor.detach());
        wide.parameters[i]->tensor.mutable_grad().copy_(halves.parameters[i]->tensor.grad());
      }
      own->step(1e-2);
      exact->step(1e-2);
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(at::equal(halves.parameters[i]->tensor, wide.parameters[i]->tensor.to(at::kBFloat16))) << name;
      }
      for (size_t i = 0; i < own->state().size(); ++i) {
        EXPECT_EQ(own->state()[i].values.scalar_type(), at::kFloat);
        EXPECT_TRUE(
            at::allclose(own->state()[i].values.narrow(0, 0, 4), exact->state()[i].values.narrow(0, 0, 4), 1e-6));
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain
