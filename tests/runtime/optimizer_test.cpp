#include "runtime/optimizer/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;

/// A unit of a matrix, a vector and a matrix, with values and gradients of their own.
struct Fixture {
  explicit Fixture(at::ScalarType dtype = at::kDouble) {
    const at::TensorOptions options = at::TensorOptions().dtype(dtype);
    for (auto& [name, shape] :
         std::vector<std::pair<std::string, std::vector<int64_t>>>{{"a", {3, 5}}, {"b", {7}}, {"c", {2, 2}}}) {
      parameters.push_back(std::make_unique<Parameter>(whole_parameter(name, shape, {}, options)));
    }
    units.emplace_back(UnitSpec{"unit", {parameters[0].get(), parameters[1].get(), parameters[2].get()}}, Sharding{});
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i]->tensor.detach().copy_(random_tensor(parameters[i]->shape, 1 + i));
    }
  }

  void set_gradients(uint64_t seed) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i]->tensor.mutable_grad().copy_(random_tensor(parameters[i]->shape, 100 * seed + i));
    }
  }

  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Unit> units;
};

OptimizerRecipe recipe(const std::string& name, const std::string& decay) {
  OptimizerRecipe recipe;
  recipe.name = name;
  recipe.weight_decay = 0.1;
  recipe.decay = decay;
  return recipe;
}

/// One parameter by the formula, without flat buffers.
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
  for (const char* decay : {"all", "matrices"}) {
    Fixture fixture;
    std::vector<at::Tensor> before;
    for (const auto& parameter : fixture.parameters) before.push_back(parameter->tensor.detach().clone());
    const auto optimizer = make_optimizer(recipe("adamw", decay), fixture.units);
    std::vector<std::vector<at::Tensor>> gradients(3);
    for (int step = 1; step <= 4; ++step) {
      fixture.set_gradients(step);
      for (size_t i = 0; i < 3; ++i) gradients[i].push_back(fixture.parameters[i]->tensor.grad().clone());
      optimizer->step(1e-2);
    }
    for (size_t i = 0; i < 3; ++i) {
      const bool decays = decay == std::string("all") || before[i].dim() > 1;
      const at::Tensor wanted = adamw_by_hand(before[i], gradients[i], 1e-2, decays ? 0.1 : 0);
      EXPECT_LT((fixture.parameters[i]->tensor.detach() - wanted).abs().max().item<double>(), 1e-14)
          << fixture.parameters[i]->name << " decay " << decay;
    }
  }
}

TEST(Optimizer, SgdWithMomentumAndDecay) {
  Fixture fixture;
  OptimizerRecipe sgd = recipe("sgd", "matrices");
  sgd.momentum = 0.5;
  std::vector<at::Tensor> wanted, velocity(3);
  for (const auto& parameter : fixture.parameters) wanted.push_back(parameter->tensor.detach().clone());
  const auto optimizer = make_optimizer(sgd, fixture.units);
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

TEST(Optimizer, PaddingStaysZero) {
  Fixture fixture;
  const auto optimizer = make_optimizer(recipe("adamw", "all"), fixture.units);
  fixture.set_gradients(1);
  optimizer->step(1e-2);
  const FlatBuffer& buffer = fixture.units[0].buffers()[0];
  at::Tensor rest = buffer.values().clone();
  for (const Segment& segment : buffer.segments()) rest.narrow(0, segment.offset, segment.numel).zero_();
  EXPECT_EQ(rest.abs().max().item<double>(), 0);
}

TEST(Optimizer, DecayRangesAreFew) {
  Fixture fixture;
  const FlatBuffer& buffer = fixture.units[0].buffers()[0];
  EXPECT_EQ(decay_ranges(buffer, recipe("adamw", "all")).size(), 1u);
  EXPECT_EQ(decay_ranges(buffer, recipe("adamw", "matrices")).size(), 3u);
}

TEST(Optimizer, PureBf16KeepsItsStateInBf16) {
  Fixture fixture(at::kBFloat16);
  const auto optimizer = make_optimizer(recipe("adamw", "all"), fixture.units);
  const at::Tensor before = fixture.parameters[0]->tensor.detach().clone();
  fixture.set_gradients(1);
  optimizer->step(1e-1);
  EXPECT_FALSE(at::equal(fixture.parameters[0]->tensor.detach(), before));
}

}  // namespace
}  // namespace meshtrain
