#include "fsdp/module.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>
#include <set>
#include <stdexcept>

#include "fsdp/fsdp.h"
#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "tests/fsdp/chain.h"
#include "tests/fsdp/modules.h"

namespace meshtrain {
namespace {

using testing::Hosts;
using testing::kMicroBatches;
using testing::kWays;
using testing::Mlp;
using testing::random_tensor;
using testing::Vit;
using testing::Way;
using testing::world;
using testing::world_on;

constexpr int kUpdates = 3;
constexpr double kLearningRate = 0.01;

/// An fp64 module, the same on every rank, and its inputs.
template <class Module>
struct Trained {
  static Module make() {
    at::manual_seed(3);
    Module module;
    module->to(at::kDouble);
    return module;
  }
  static at::Tensor input(int64_t rank, int64_t step, int64_t micro_batch);
  static at::Tensor labels(int64_t rank, int64_t micro_batch) {
    return at::arange(6, at::kLong).add(rank + micro_batch).remainder(5);
  }
};

template <>
at::Tensor Trained<Mlp>::input(int64_t rank, int64_t step, int64_t micro_batch) {
  return random_tensor({6, 12}, static_cast<uint64_t>(1000 * step + 10 * rank + micro_batch));
}
template <>
at::Tensor Trained<Vit>::input(int64_t rank, int64_t step, int64_t micro_batch) {
  return random_tensor({6, 1, 8, 8}, static_cast<uint64_t>(1000 * step + 10 * rank + micro_batch));
}

const std::vector<std::string>& units_of(const Mlp&) {
  static const std::vector<std::string> units = {"first", "unused", "last"};
  return units;
}
const std::vector<std::string>& units_of(const Vit&) {
  static const std::vector<std::string> units = {"patches", "blocks.*", "head"};
  return units;
}

void descend(Fsdp& fsdp) {
  const at::NoGradGuard no_grad;
  for (const FlatBuffer* buffer : trainable_buffers(fsdp.units())) {
    at::Tensor(buffer->shard_values()).sub_(buffer->shard_gradients(), kLearningRate);
  }
  fsdp.shards_changed();
}

/// Trains one copy of the module under `options`, and another on this rank alone with every rank's micro-batches, one
/// by one.
template <class Module>
void expect_equal_to_one_rank(const FsdpOptions& options) {
  using Inputs = Trained<Module>;
  Module alone = Inputs::make(), wrapped = Inputs::make();
  const ModuleUnits units(*wrapped, units_of(wrapped));
  Fsdp fsdp(units.specs(), options);
  for (int step = 0; step < kUpdates; ++step) {
    alone->zero_grad();
    for (int rank = 0; rank < world().size(); ++rank) {
      for (int64_t i = 0; i < kMicroBatches; ++i) {
        alone->forward(Inputs::input(rank, step, i), Inputs::labels(rank, i)).backward();
      }
    }
    fsdp.begin_step();
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      const at::Tensor loss = fsdp.run(
          [&] { return wrapped->forward(Inputs::input(world().rank(), step, i), Inputs::labels(world().rank(), i)); });
      fsdp.begin_backward(i + 1 == kMicroBatches);
      loss.backward();
      fsdp.end_backward();
    }
    std::map<std::string, at::Tensor> expected;
    for (const auto& named : alone->named_parameters()) expected.emplace(named.key(), named.value());
    size_t num_gradients = 0;
    fsdp.visit_gradients([&](const Parameter& parameter) {
      const at::Tensor gradient = expected.at(parameter.name).grad();
      const at::Tensor difference = gradient.defined() ? parameter.tensor - gradient : parameter.tensor;
      EXPECT_LT(difference.abs().max().template item<double>(), 1e-11) << parameter.name << " in step " << step;
      ++num_gradients;
    });
    EXPECT_EQ(num_gradients, units.parameters().size());
    descend(fsdp);
    const at::NoGradGuard no_grad;
    std::set<const void*> updated;  // a layer with two names has its parameters twice
    for (const at::Tensor& parameter : alone->parameters()) {
      if (!parameter.grad().defined() || !updated.insert(parameter.unsafeGetTensorImpl()).second) continue;
      at::Tensor(parameter).sub_(parameter.grad(), kLearningRate);
    }
    fsdp.visit_values([&](const Unit& unit) {
      for (const Parameter* parameter : unit.parameters()) {
        const at::Tensor difference = parameter->tensor - expected.at(parameter->name);
        EXPECT_LT(difference.abs().max().template item<double>(), 1e-11) << parameter->name << " in step " << step;
      }
    });
  }
}

TEST(ModuleFsdp, EqualsOneRankInEveryMode) {
  for (const Hosts hosts : {Hosts::Found, Hosts::Refused}) {
    const Group ranks = world_on(hosts);
    for (const Way& way : kWays) {
      SCOPED_TRACE(way.name + (hosts == Hosts::Refused ? " without windows" : ""));
      expect_equal_to_one_rank<Mlp>(way.options(ranks));
      expect_equal_to_one_rank<Vit>(way.options(ranks));
    }
  }
}

/// Returns the number of units whose parameters have memory.
int64_t num_gathered(const Fsdp& fsdp) {
  int64_t number = 0;
  for (const Unit& unit : fsdp.units()) {
    const bool gathered = unit.buffers().front().values().storage().data() != nullptr;
    if (gathered && !unit.whole_step()) ++number;
  }
  return number;
}

TEST(ModuleFsdp, GathersTheUnitInUseAndThoseAhead) {
  if (world().size() == 1) return;
  for (const int64_t prefetch : {0, 1, 2}) {
    Vit module = Trained<Vit>::make();
    const ModuleUnits units(*module, units_of(module));
    FsdpOptions options;
    options.mode = ShardingMode::FullShard;
    options.shards = options.summed_over = world_on(Hosts::Refused);
    options.prefetch = prefetch;
    Fsdp fsdp(units.specs(), options);
    std::vector<int64_t> seen;
    module->after_block = [&] { seen.push_back(num_gathered(fsdp)); };
    const at::Tensor loss =
        fsdp.run([&] { return module->forward(Trained<Vit>::input(0, 0, 0), Trained<Vit>::labels(0, 0)); });
    const int64_t most = 1 + prefetch;
    EXPECT_EQ(seen, (std::vector<int64_t>{most, most, most, 1 + std::min<int64_t>(prefetch, 1)}));
    EXPECT_EQ(num_gathered(fsdp), 1) << "the last unit stays for its backward";
    fsdp.begin_step();
    fsdp.begin_backward(/*last=*/true);
    loss.backward();
    fsdp.end_backward();
    EXPECT_EQ(num_gathered(fsdp), 0);
  }
}

TEST(ModuleFsdp, UnitsAreNamedAndComplete) {
  Vit vit = Trained<Vit>::make();
  std::vector<std::string> names;
  const ModuleUnits of_vit(*vit, units_of(vit));
  for (const UnitSpec& unit : of_vit.specs()) names.push_back(unit.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"the rest", "patches", "blocks.0", "blocks.1", "blocks.2", "blocks.3", "head"}));
  Mlp mlp = Trained<Mlp>::make();
  const ModuleUnits of_mlp(*mlp, {"first", "last"});
  EXPECT_EQ(of_mlp.parameters().size(), mlp->named_parameters().size() - 2) << "middle and again are one";
  EXPECT_THROW(ModuleUnits(*mlp, {"second"}), std::invalid_argument);
  EXPECT_THROW(ModuleUnits(*mlp, {"middle"}), std::invalid_argument) << "its parameters are also those of again";
}

/// Layers that are used in a different order than the units.
struct BackAndForth : torch::nn::Module {
  BackAndForth() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(8, 8));
    register_module("layers", layers);
    to(at::kDouble);
  }
  at::Tensor layer(int i, const at::Tensor& x) {
    return at::tanh(layers->at<torch::nn::LinearImpl>(static_cast<size_t>(i)).forward(x));
  }
  at::Tensor weight(int i) { return layers->at<torch::nn::LinearImpl>(static_cast<size_t>(i)).weight; }
  at::Tensor forward(at::Tensor x, const std::vector<int>& order) {
    for (const int i : order) x = layer(i, x);
    return x.square().sum();
  }
  torch::nn::ModuleList layers;
};

TEST(ModuleFsdp, UsesOutOfOrderAreRightOrRefused) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    const FsdpOptions options = way.options(world_on(Hosts::Refused));
    for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3}, {2, 0, 3, 1}, {3, 2, 1, 0}, {0, 1, 2, 3, 0}}) {
      at::manual_seed(5);
      BackAndForth alone;
      at::manual_seed(5);
      BackAndForth module;
      const ModuleUnits units(module, {"layers.*"});
      Fsdp fsdp(units.specs(), options);
      const at::Tensor input = random_tensor({3, 8}, 7);
      fsdp.begin_step();
      const at::Tensor loss = fsdp.run([&] { return module.forward(input, order); });
      const at::Tensor expected = alone.forward(input, order);
      EXPECT_EQ(loss.item<double>(), expected.item<double>());
      expected.backward();
      fsdp.begin_backward(/*last=*/true);
      const bool in_order = order == std::vector<int>{0, 1, 2, 3};
      if (!keeps_full_gradients(options, at::kCPU) && !in_order) {
        EXPECT_THROW(loss.backward(), std::logic_error);
        break;  // ranks have stopped in the middle of a backward
      }
      loss.backward();
      fsdp.end_backward();
      auto parameter = alone.named_parameters();
      fsdp.visit_gradients([&](const Parameter& own) {
        const at::Tensor gradient = parameter[own.name].grad() * static_cast<double>(world().size());
        EXPECT_LT((own.tensor - gradient).abs().max().item<double>(), 1e-11) << own.name;
      });
    }
  }
}

/// Returns options that cut units over the world, on hosts without windows: memory is reused.
FsdpOptions with_reused_memory(const Group& ranks) {
  FsdpOptions options;
  options.mode = ShardingMode::FullShard;
  options.shards = options.summed_over = ranks;
  return options;
}

struct TwoHalves {
  TwoHalves(Vit lower, Vit upper, const FsdpOptions& options)
      : lower_units(*lower, units_of(lower)),
        upper_units(*upper, units_of(upper)),
        lower_fsdp(lower_units.specs(), options),
        upper_fsdp(upper_units.specs(), options) {}
  ModuleUnits lower_units, upper_units;
  Fsdp lower_fsdp, upper_fsdp;
};

TEST(ModuleFsdp, TwoInOneForwardDoNotDisturbEachOther) {
  Vit lower = Trained<Vit>::make(), upper = Trained<Vit>::make(), alone = Trained<Vit>::make();
  TwoHalves halves(lower, upper, with_reused_memory(world_on(Hosts::Refused)));
  const at::Tensor labels = Trained<Vit>::labels(0, 0);
  for (int step = 0; step < 2; ++step) {
    alone->zero_grad();
    halves.lower_fsdp.begin_step();
    halves.upper_fsdp.begin_step();
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      const at::Tensor input = Trained<Vit>::input(0, step, i);
      const at::Tensor loss = halves.lower_fsdp.run([&] { return lower->forward(input, labels); }) +
                              2 * halves.upper_fsdp.run([&] { return upper->forward(input, labels); });
      const bool last = i + 1 == kMicroBatches;
      halves.lower_fsdp.begin_backward(last);
      halves.upper_fsdp.begin_backward(last);
      loss.backward();
      halves.lower_fsdp.end_backward();
      halves.upper_fsdp.end_backward();
      alone->forward(input, labels).backward();
    }
    auto expected = alone->named_parameters();
    const auto expect_times = [&](Fsdp& fsdp, double factor) {
      fsdp.visit_gradients([&](const Parameter& parameter) {
        const at::Tensor gradient = expected[parameter.name].grad() * (factor * static_cast<double>(world().size()));
        EXPECT_LT((parameter.tensor - gradient).abs().max().item<double>(), 1e-10) << parameter.name;
      });
    };
    expect_times(halves.lower_fsdp, 1);
    expect_times(halves.upper_fsdp, 2);
  }
}

TEST(ModuleFsdp, SendsWhatNamedUnitsSend) {
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}, {"cp", 1}, {"tp", 1}}), world_on(Hosts::Refused));
  const auto bytes_of_step = [&](const std::vector<int>& order, bool names_units) {
    at::manual_seed(5);
    BackAndForth module;
    const ModuleUnits units(module, {"layers.*"});
    Fsdp fsdp(units.specs(), with_reused_memory(mesh.group(kDataAxis)));
    fsdp.begin_step();
    mesh.traffic().clear();
    at::Tensor x = random_tensor({3, 8}, 7);
    if (names_units) {
      for (const int i : order) {
        x = fsdp.run(static_cast<size_t>(i), [&] { return module.layer(i, x); });
      }
      x = x.square().sum();
    } else {
      x = fsdp.run([&] { return module.forward(x, order); });
    }
    fsdp.begin_backward(/*last=*/true);
    x.backward();
    fsdp.end_backward();
    return mesh.traffic().total("", "dp.parameters").buffer_bytes;
  };
  EXPECT_EQ(bytes_of_step({0, 1, 2, 3}, false), bytes_of_step({0, 1, 2, 3}, true));
}

TEST(ModuleFsdp, AUseWithoutAGradientAfterTheReductionIsRight) {
  at::manual_seed(5);
  BackAndForth alone;
  at::manual_seed(5);
  BackAndForth module;
  const ModuleUnits units(module, {"layers.*"});
  Fsdp fsdp(units.specs(), with_reused_memory(world_on(Hosts::Refused)));
  const at::Tensor input = random_tensor({3, 8}, 7);
  const auto loss_of = [&](BackAndForth& of) {
    // The last layer's weight, which gets no gradient here, is used first, and so in the backward last.
    const at::Tensor x = at::tanh(at::linear(at::tanh(of.layer(0, input)), of.weight(3).detach()));
    return of.forward(x, {1, 2, 3});
  };
  fsdp.begin_step();
  const at::Tensor loss = fsdp.run([&] { return loss_of(module); });
  fsdp.begin_backward(/*last=*/true);
  loss.backward();
  fsdp.end_backward();
  loss_of(alone).backward();
  auto expected = alone.named_parameters();
  fsdp.visit_gradients([&](const Parameter& own) {
    const at::Tensor gradient = expected[own.name].grad() * static_cast<double>(world().size());
    EXPECT_LT((own.tensor - gradient).abs().max().item<double>(), 1e-11) << own.name;
  });
}

/// Layer `i` of a module, which keeps only its input; its backward computes the layer again.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, BackAndForth* module,
                            int64_t i) {
    context->save_for_backward({x});
    context->saved_data["module"] = reinterpret_cast<int64_t>(module);
    context->saved_data["layer"] = i;
    return module->layer(static_cast<int>(i), x);
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          const std::vector<at::Tensor>& gradients) {
    auto* const module = reinterpret_cast<BackAndForth*>(context->saved_data["module"].toInt());
    const at::Tensor x = context->get_saved_variables().at(0).detach().requires_grad_();
    {
      const at::AutoGradMode records(true);
      const at::Tensor y = module->layer(static_cast<int>(context->saved_data["layer"].toInt()), x);
      torch::autograd::backward({y}, {gradients.at(0)});
    }
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

TEST(ModuleFsdp, AForwardThatTheBackwardRunsAgainIsRight) {
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    at::manual_seed(5);
    BackAndForth alone;
    at::manual_seed(5);
    BackAndForth module;
    const ModuleUnits units(module, {"layers.*"});
    Fsdp fsdp(units.specs(), way.options(world_on(Hosts::Refused)));
    fsdp.begin_step();
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      const at::Tensor input = random_tensor({3, 8}, 7 + static_cast<uint64_t>(i));
      const at::Tensor loss = fsdp.run([&] {
        at::Tensor x = input.detach().requires_grad_();
        for (int64_t layer = 0; layer < 4; ++layer) x = Recomputed::apply(x, &module, layer);
        return x.square().sum();
      });
      fsdp.begin_backward(i + 1 == kMicroBatches);
      loss.backward();
      fsdp.end_backward();
      alone.forward(input, {0, 1, 2, 3}).backward();
    }
    auto expected = alone.named_parameters();
    fsdp.visit_gradients([&](const Parameter& own) {
      const at::Tensor gradient = expected[own.name].grad() * static_cast<double>(world().size());
      EXPECT_LT((own.tensor - gradient).abs().max().item<double>(), 1e-11) << own.name;
    });
  }
}

TEST(ModuleFsdp, RefusesWhatWouldNotBeTrained) {
  BackAndForth module;
  const ModuleUnits units(module, {"layers.*"});
  Fsdp fsdp(units.specs(), with_reused_memory(world_on(Hosts::Refused)));
  const at::Tensor input = random_tensor({3, 8}, 7);
  EXPECT_THROW(fsdp.run([&] { return (module.weight(0) + module.weight(1)).sum(); }), std::logic_error);
  fsdp.begin_step();
  const at::Tensor loss = fsdp.run([&] { return module.forward(input, {0, 1, 2, 3}); });
  module.zero_grad();  // drops the gradients' memory
  fsdp.begin_backward(/*last=*/true);
  EXPECT_THROW(loss.backward(), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
