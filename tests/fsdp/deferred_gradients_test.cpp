// Gradients that backwards leave to be computed later: each unit is reduced after the last of them.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <deque>
#include <functional>
#include <limits>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "mesh/device/gradient_state.h"
#include "tests/fsdp/chain.h"

namespace meshtrain {
namespace {

using testing::Hosts;
using testing::input_of;
using testing::kWays;
using testing::random_tensor;
using testing::Way;
using testing::world;
using testing::world_on;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Later = std::deque<std::function<void()>>;

/// A layer x W that leaves the gradient of W for later, or computes it where `later` is null.
struct LateLayer : torch::autograd::Function<LateLayer> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, Later* later) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["later"] = reinterpret_cast<int64_t>(later);
    return x.mm(weight);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor x = ctx->get_saved_variables()[0].detach(), weight = ctx->get_saved_variables()[1];
    auto* const later = reinterpret_cast<Later*>(ctx->saved_data["later"].toInt());
    const auto compute = [x, weight, dy = grads[0]] {
      const at::NoGradGuard no_grad;
      const at::Tensor gradient = x.t().mm(dy);
      GradientState::of(weight)->take_unwritten() ? weight.grad().copy_(gradient) : weight.grad().add_(gradient);
    };
    if (later == nullptr) {
      compute();
    } else {
      GradientState::of(weight)->defer();
      later->push_back([compute, weight] {
        compute();
        GradientState::of(weight)->end_deferred();
      });
    }
    return {grads[0].mm(weight.t()), at::Tensor(), at::Tensor()};
  }
};

/// Four units of a weight, whose layer writes its gradient, and a bias; the second weight is used twice.
struct LateModel {
  LateModel() {
    for (size_t i = 0; i < 4; ++i) {
      weights.push_back(made("weight " + std::to_string(i), {8, 8}, i));
      weights.back()->written_by_layer = true;
      biases.push_back(made("bias " + std::to_string(i), {8}, 10 + i));
    }
  }

  static std::unique_ptr<Parameter> made(const std::string& name, const std::vector<int64_t>& shape, uint64_t seed) {
    auto parameter = std::make_unique<Parameter>(full_parameter(name, shape, {}, at::kDouble));
    parameter->tensor = (random_tensor(shape, seed) / 4).requires_grad_();
    return parameter;
  }

  std::vector<UnitSpec> units() const {
    std::vector<UnitSpec> specs;
    for (size_t i = 0; i < weights.size(); ++i) {
      specs.push_back({"unit " + std::to_string(i), {weights[i].get(), biases[i].get()}});
    }
    return specs;
  }

  at::Tensor loss(int64_t micro_batch, Fsdp& fsdp, Later* later) const {
    at::Tensor x = input_of(world().rank(), micro_batch);
    for (size_t i = 0; i < weights.size(); ++i) {
      x = fsdp.run(i, [&] {
        at::Tensor y = LateLayer::apply(x, weights[i]->tensor, later).tanh();
        if (i == 1) y = LateLayer::apply(y, weights[i]->tensor, later).tanh();
        return y + biases[i]->tensor;
      });
    }
    return x.square().sum();
  }

  std::vector<std::unique_ptr<Parameter>> weights, biases;
};

std::map<std::string, at::Tensor> all_gradients(Fsdp& fsdp) {
  std::map<std::string, at::Tensor> all;
  fsdp.visit_gradients([&](const Parameter& parameter) { all[parameter.name] = parameter.tensor.clone(); });
  return all;
}

/// Makes a step whose backwards compute everything.
std::map<std::string, at::Tensor> step_at_once(const FsdpOptions& options, int64_t num_micro_batches) {
  const LateModel model;
  Fsdp fsdp(model.units(), options);
  fsdp.begin_step();
  for (int64_t i = 0; i < num_micro_batches; ++i) {
    const at::Tensor loss = model.loss(i, fsdp, nullptr);
    fsdp.begin_backward(i + 1 == num_micro_batches);
    loss.backward();
    fsdp.end_backward();
  }
  return all_gradients(fsdp);
}

void compute(Later& later) {
  for (; !later.empty(); later.pop_front()) later.front()();
}

/// Returns the ways in which gradients have memory for a complete step.
std::vector<Way> ways_to_defer() {
  std::vector<Way> ways;
  for (const Way& way : kWays) {
    const bool is_cut = way.mode == ShardingMode::ShardGradOp || way.mode == ShardingMode::FullShard;
    if (way.accumulate_unsharded || !is_cut) ways.push_back(way);
  }
  return ways;
}

class DeferredUnits : public ::testing::TestWithParam<Way> {};

// Micro-batch i's gradients are computed after the backward of micro-batch i + 1.
TEST_P(DeferredUnits, GiveTheBitsOfBackwardsThatComputeEverything) {
  const FsdpOptions options = GetParam().options(world_on(Hosts::Found));
  for (const int64_t num_micro_batches : {1, 3}) {
    const LateModel model;
    Fsdp fsdp(model.units(), options);
    const auto wanted = step_at_once(options, num_micro_batches);
    for (int step = 0; step < 2; ++step) {
      for (const Unit& unit : fsdp.units()) {
        for (const FlatBuffer& buffer : unit.buffers()) {
          at::Tensor(buffer.gradients()).fill_(std::numeric_limits<double>::quiet_NaN());
        }
      }
      world().barrier();
      fsdp.begin_step();
      std::vector<Later> later(static_cast<size_t>(num_micro_batches));
      for (int64_t i = 0; i < num_micro_batches; ++i) {
        const at::Tensor loss = model.loss(i, fsdp, &later[static_cast<size_t>(i)]);
        fsdp.begin_backward(false);
        loss.backward();
        fsdp.end_backward();
        if (i > 0) compute(later[static_cast<size_t>(i - 1)]);
      }
      fsdp.begin_deferred();
      compute(later.back());
      fsdp.end_backward();
      for (const auto& [name, gradient] : all_gradients(fsdp)) {
        EXPECT_TRUE(at::equal(gradient, wanted.at(name))) << name << " in step " << step;
      }
      fsdp.shards_changed();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeferredUnits, ::testing::ValuesIn(ways_to_defer()),
                         [](const auto& test) { return test.param.name; });

TEST(DeferredReductions, DoNotBeginInTheBackward) {
  for (const Way& way : kWays) {
    const LateModel model;
    Fsdp fsdp(model.units(), way.options(world_on(Hosts::Found)));
    const auto backward = [&](bool last) {
      Later later;
      fsdp.begin_step();
      const at::Tensor loss = model.loss(0, fsdp, &later);
      fsdp.begin_backward(last);
      loss.backward();
      fsdp.end_backward();
    };
    EXPECT_THROW(backward(/*last=*/true), std::logic_error) << way.name;
    if (!fsdp.memory().gradients.is_reused()) continue;
    EXPECT_THROW(backward(/*last=*/false), std::logic_error) << way.name << " lends its memory to the next unit";
  }
}

// A unit's reduction begins while gradients of the units before it are still to be computed.
TEST(DeferredReductions, BeginUnitByUnit) {
  const LateModel model;
  FsdpOptions options;
  options.mode = ShardingMode::ShardGradOp;
  options.accumulate_unsharded = true;
  options.shards = world();
  Fsdp fsdp(model.units(), options);
  fsdp.begin_step();
  Later later;
  const at::Tensor loss = model.loss(0, fsdp, &later);
  fsdp.begin_backward(false);
  loss.backward();
  fsdp.end_backward();
  fsdp.begin_deferred();
  size_t num_left = later.size();
  for (int unit = 3; unit >= 0; --unit) {
    for (int use = unit == 1 ? 2 : 1; use > 0; --use) {
      EXPECT_EQ(fsdp.units()[static_cast<size_t>(unit)].num_deferred(), 1);
      EXPECT_FALSE(fsdp.units()[static_cast<size_t>(unit)].complete());
      later.front()();
      later.pop_front();
      --num_left;
    }
    EXPECT_TRUE(fsdp.units()[static_cast<size_t>(unit)].complete()) << "its bias is final since the backward";
  }
  EXPECT_EQ(num_left, 0U);
  fsdp.end_backward();
}

}  // namespace
}  // namespace meshtrain
