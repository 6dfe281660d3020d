// Gradients that layers write themselves: not set to zero before, zero where nobody writes, and without old values of
// the memory.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <stdexcept>

#include "mesh/device/aten.h"
#include "mesh/device/gradient_state.h"
#include "tests/fsdp/chain.h"
#include "tests/support/zero_recorder.h"

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

/// A layer x W that writes the gradient of W into its buffer itself.
struct Layer : torch::autograd::Function<Layer> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight) {
    ctx->save_for_backward({x, weight});
    return x.mm(weight);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor x = ctx->get_saved_variables()[0], weight = ctx->get_saved_variables()[1];
    const at::Tensor gradient = x.t().mm(grads[0]);
    if (GradientState::of(weight)->take_unwritten()) {
      weight.grad().copy_(gradient);
    } else {
      weight.grad().add_(gradient);
    }
    return {grads[0].mm(weight.t()), at::Tensor()};
  }
};

/// Units of 8 x 8 weights; some backwards leave parameters out.
struct Model {
  Model() {
    for (const char* name : {"first", "second", "third", "fourth", "late"}) add(name, {8, 8}, /*written=*/true);
    add("unused", {5}, /*written=*/true);
    add("bias", {8}, /*written=*/false);
    add("never", {3, 3}, /*written=*/true);
  }

  void add(const std::string& name, const std::vector<int64_t>& shape, bool written) {
    parameters.push_back(std::make_unique<Parameter>(full_parameter(name, shape, {}, at::kDouble)));
    parameters.back()->tensor = (random_tensor(shape, parameters.size()) / 4).requires_grad_();
    parameters.back()->written_by_layer = written;
  }

  std::vector<UnitSpec> units() const {
    const auto unit = [&](const std::string& name, const std::vector<size_t>& indices) {
      UnitSpec spec{name, {}};
      for (const size_t i : indices) spec.parameters.push_back(parameters[i].get());
      return spec;
    };
    return {unit("0", {0}), unit("1", {1, 5}), unit("2", {2, 6}), unit("3", {7}), unit("4", {3, 4})};
  }

  /// Uses "late" only in odd micro-batches, "second" twice.
  template <class Product, class Run>
  at::Tensor loss(int64_t rank, int64_t micro_batch, const Product& product, const Run& run) const {
    const auto weight = [&](size_t i) -> const at::Tensor& { return parameters[i]->tensor; };
    at::Tensor x = run(0, [&] { return product(input_of(rank, micro_batch), weight(0)).tanh(); });
    x = run(1, [&] { return product(product(x, weight(1)).tanh(), weight(1)).tanh(); });
    x = run(2, [&] { return (product(x, weight(2)) + weight(6)).tanh(); });
    return run(4, [&] {
      at::Tensor y = product(x, weight(3)).square().sum();
      return micro_batch % 2 == 1 ? y + product(x, weight(4)).square().sum() : y;
    });
  }
  at::Tensor loss(int64_t rank, int64_t micro_batch) const {
    return loss(
        rank, micro_batch, [](const at::Tensor& a, const at::Tensor& b) { return a.mm(b); },
        [](size_t, const auto& forward) { return forward(); });
  }
  at::Tensor loss(int64_t micro_batch, Fsdp& fsdp) const {
    return loss(
        world().rank(), micro_batch, [](const at::Tensor& a, const at::Tensor& b) { return Layer::apply(a, b); },
        [&](size_t unit, const auto& forward) { return fsdp.run(unit, forward); });
  }

  std::vector<std::unique_ptr<Parameter>> parameters;
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Fills all memory of gradients, and its padding.
void poison(const Fsdp& fsdp) {
  const Arena& memory = fsdp.memory().gradients;
  for (size_t unit = 0; unit < fsdp.units().size(); ++unit) {
    memory.lend(unit);
    for (const FlatBuffer& buffer : fsdp.units()[unit].buffers()) {
      at::Tensor(buffer.gradients()).fill_(kNaN);
      at::Tensor(buffer.shard_gradients()).fill_(kNaN);
    }
    memory.take_back(unit);
  }
}

void backward_of_step(const Model& model, Fsdp& fsdp, int64_t num_micro_batches) {
  fsdp.begin_step();
  for (int64_t i = 0; i < num_micro_batches; ++i) {
    const at::Tensor loss = model.loss(i, fsdp);
    fsdp.begin_backward(i + 1 == num_micro_batches);
    loss.backward();
    fsdp.end_backward();
  }
}

/// Computes, on this rank alone, the sum over all ranks and micro-batches, and expects it.
void expect_gradients(Fsdp& fsdp, int64_t num_micro_batches) {
  const Model alone;
  for (int rank = 0; rank < world().size(); ++rank) {
    for (int64_t i = 0; i < num_micro_batches; ++i) alone.loss(rank, i).backward();
  }
  size_t num_compared = 0;
  fsdp.visit_gradients([&](const Parameter& parameter) {
    for (const auto& each : alone.parameters) {
      if (each->name != parameter.name) continue;
      ++num_compared;
      const at::Tensor expected =
          each->tensor.grad().defined() ? each->tensor.grad() : at::zeros_like(parameter.tensor);
      EXPECT_TRUE(at::allclose(parameter.tensor, expected, 1e-12, 1e-12)) << parameter.name << parameter.tensor;
    }
  });
  EXPECT_EQ(num_compared, alone.parameters.size());
  for (const Unit& unit : fsdp.units()) {
    for (const FlatBuffer& buffer : unit.buffers()) {  // the padding
      EXPECT_FALSE(buffer.shard_gradients().isnan().any().item<bool>()) << unit.name();
    }
  }
}

class UnwrittenGradients : public ::testing::TestWithParam<std::tuple<Way, Hosts, int64_t>> {};

TEST_P(UnwrittenGradients, NeverShowWhatTheirMemoryHeld) {
  const auto& [way, hosts, num_micro_batches] = GetParam();
  const Model model;
  Fsdp fsdp(model.units(), way.options(world_on(hosts)));
  for (int step = 0; step < 2; ++step) {
    poison(fsdp);
    world().barrier();
    backward_of_step(model, fsdp, num_micro_batches);
    expect_gradients(fsdp, num_micro_batches);
    fsdp.shards_changed();
  }
}

// A range of a buffer is either written by its layer or set to zero, never both; padding and ranges that nobody writes
// are set to zero.
TEST_P(UnwrittenGradients, AreSetToZeroWhereNobodyWrites) {
  const auto& [way, hosts, num_micro_batches] = GetParam();
  const Model model;
  Fsdp fsdp(model.units(), way.options(world_on(hosts)));
  const testing::ZeroRecorder recorder;
  backward_of_step(model, fsdp, num_micro_batches);
  const std::vector<at::Tensor> zeroed = recorder.tensors();
  for (const Unit& unit : fsdp.units()) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      at::Tensor times = at::zeros({buffer.numel()}, at::kLong);
      for (const at::Tensor& range : zeroed) {
        if (range.is_alias_of(buffer.gradients())) times.narrow(0, range.storage_offset(), range.numel()).add_(1);
      }
      for (const Segment& segment : buffer.segments()) {
        at::Tensor own = times.narrow(0, segment.offset, segment.numel);
        const std::string& name = segment.parameter->name;
        const bool written = segment.parameter->written_by_layer && name != "unused" && name != "never";
        if (name != "late") {
          EXPECT_EQ(own.eq(0).all().item<bool>(), written) << name;
        }
        EXPECT_EQ(own.eq(0).any().item<bool>(), own.eq(0).all().item<bool>()) << name << ": in part";
        own.fill_(1);
      }
      EXPECT_TRUE(times.gt(0).all().item<bool>()) << unit.name() << ": padding";
    }
  }
}

// Ranks abandon a step, each in the same backward, and make the next one. They either complete the sums of that
// backward or leave it, as run_schedule() does.
TEST_P(UnwrittenGradients, AreForgottenAfterABackwardThatFailed) {
  const auto& [way, hosts, num_micro_batches] = GetParam();
  for (const size_t failing : {2, 0}) {
    for (const bool completes : {true, false}) {
      const Model model;
      Fsdp fsdp(model.units(), way.options(world_on(hosts)));
      fsdp.begin_step();
      const at::Tensor loss = model.loss(
          0, 0, [](const at::Tensor& a, const at::Tensor& b) { return Layer::apply(a, b); },
          [&](size_t unit, const auto& forward) {
            const at::Tensor y = fsdp.run(unit, forward);
            if (unit == failing) y.register_hook([](const at::Tensor&) { throw std::runtime_error("no more"); });
            return y;
          });
      fsdp.begin_backward(num_micro_batches == 1);
      EXPECT_THROW(loss.backward(), std::runtime_error);
      completes ? fsdp.end_backward() : fsdp.leave_backward();
      if (completes) poison(fsdp);
      world().barrier();
      backward_of_step(model, fsdp, num_micro_batches);
      expect_gradients(fsdp, num_micro_batches);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, UnwrittenGradients,
                         ::testing::Combine(::testing::ValuesIn(kWays), ::testing::Values(Hosts::Found, Hosts::Refused),
                                            ::testing::Values(1, 3)),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + name_of(std::get<1>(test.param)) + "_" +
                                  std::to_string(std::get<2>(test.param));
                         });

// Autograd would add to an unwritten buffer and leave a wrong gradient that nobody notices.
TEST(WrittenByLayer, RefusesAGradientFromElsewhere) {
  const Model model;
  FsdpOptions options;
  options.replicas = world();
  Fsdp fsdp(model.units(), options);
  const at::Tensor x = input_of(0, 0), &weight = model.parameters[0]->tensor;
  const auto backward = [&](const at::Tensor& loss) {
    fsdp.begin_step();
    fsdp.begin_backward(true);
    loss.backward();
    fsdp.end_backward();
  };
  EXPECT_THROW(backward(x.mm(weight).sum()), std::logic_error);
  fsdp.end_backward();
  // The weight may also be used outside its layer when the layer's backward runs before autograd adds.
  backward(x.mm(weight).sum() + Layer::apply(x, weight).sum());
  const at::Tensor once = x.sum(0).unsqueeze(1).expand_as(weight);
  EXPECT_TRUE(at::allclose(weight.grad(), once * 2 * static_cast<double>(world().size())));
}

}  // namespace
}  // namespace meshtrain
