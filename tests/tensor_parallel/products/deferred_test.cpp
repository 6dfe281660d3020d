// Weight gradients that a backward leaves for later have the bits of those that it computes itself.

#include "tensor_parallel/products/deferred.h"

#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "mesh/device/aten.h"
#include "mesh/device/gradient_state.h"
#include "tensor_parallel/linear.h"
#include "tests/support/world.h"
#include "tests/tensor_parallel/layers.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kDeferredIn = 16, kDeferredTokens = 8;

/// A column-parallel layer of three outputs, then a row-parallel one, with unwritten gradients of NaN.
struct LateLayers {
  explicit LateLayers(bool sequence_parallel)
      : tp(tensor_parallel(sequence_parallel)),
        column(tp, kDeferredIn, {{"q", 16}, {"k", 8}, {"v", 8}}, true, {}, at::kFloat),
        row(tp, "o", 32, kDeferredIn, true, {}, at::kFloat) {
    for (Parameter* parameter : column.parameters()) all.push_back(parameter);
    for (Parameter* parameter : row.parameters()) all.push_back(parameter);
    materialize(all, full_values(all), Storage::Flat);
    for (const Parameter* parameter : all) {
      parameter->tensor.grad().fill_(std::numeric_limits<float>::quiet_NaN());
      GradientState::attach(parameter->tensor, [this, parameter] { ++finals[parameter->name]; });
      GradientState::of(parameter->tensor)->set_written(false);
    }
  }

  /// Runs a micro-batch. Returns the gradient of its input.
  at::Tensor backward(int64_t micro_batch) const {
    const at::Tensor rows = own_rows(random_tensor({kDeferredTokens, kDeferredIn}, 30 + micro_batch, at::kFloat), tp);
    const at::Tensor x = rows.clone().requires_grad_();
    const at::Tensor y = row.forward(column.forward(x).tanh());
    y.backward(own_rows(random_tensor({kDeferredTokens, kDeferredIn}, 40 + micro_batch, at::kFloat), tp));
    return x.grad();
  }
  at::Tensor backward(int64_t micro_batch, DeferredGradients& later) const {
    const DeferringBackward defers(later);
    return backward(micro_batch);
  }

  TensorParallel tp;
  ColumnParallelLinear column;
  RowParallelLinear row;
  std::vector<Parameter*> all;
  std::map<std::string, int> finals;  // calls for each parameter
};

bool is_late(const Parameter& parameter) {
  return parameter.name.ends_with("weight");
}

TEST(DeferredGradients, HaveTheBitsOfThoseThatAreNot) {
  for (const bool sequence_parallel : {false, true}) {
    LateLayers layers(sequence_parallel), wanted(sequence_parallel);
    std::vector<DeferredGradients> later(3);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(layers.backward(i, later[static_cast<size_t>(i)]), wanted.backward(i)));
    }
    for (const Parameter* parameter : layers.all) {
      const GradientState& state = *GradientState::of(parameter->tensor);
      EXPECT_EQ(state.deferred(), is_late(*parameter)) << parameter->name;
      EXPECT_EQ(state.written(), !is_late(*parameter)) << parameter->name << ": the first gradient writes";
      EXPECT_EQ(layers.finals[parameter->name], is_late(*parameter) ? 0 : 3) << parameter->name;
      EXPECT_EQ(parameter->tensor.grad().isnan().all().item<bool>(), is_late(*parameter)) << parameter->name;
    }
    for (DeferredGradients& gradients : later) {
      EXPECT_EQ(gradients.size(), 2U) << "one for each layer";
      gradients.compute();
      EXPECT_EQ(gradients.size(), 0U);
    }
    for (size_t i = 0; i < layers.all.size(); ++i) {
      const Parameter& parameter = *layers.all[i];
      EXPECT_TRUE(at::equal(parameter.tensor.grad(), wanted.all[i]->tensor.grad())) << parameter.name;
      EXPECT_EQ(layers.finals[parameter.name], is_late(parameter) ? 1 : 3) << parameter.name;
    }
  }
}

TEST(DeferredGradients, KeepTheInputUntilTheyAreComputed) {
  ColumnParallelLinear layer({Group(), false}, kDeferredIn, {{"q", 8}}, false, {}, at::kFloat);
  materialize(layer.parameters(), full_values(layer.parameters()), Storage::Flat);
  GradientState::attach(layer.parameters()[0]->tensor, [] {});
  at::Tensor x = random_tensor({kDeferredTokens, kDeferredIn}, 1, at::kFloat).clone();
  const auto holders = [&] { return x.storage().use_count(); };
  const auto before = holders();
  DeferredGradients later;
  {
    const at::Tensor y = layer.forward(x);
    const DeferringBackward defers(later);
    y.backward(at::ones_like(y));
  }
  EXPECT_GT(holders(), before);
  later.compute();
  EXPECT_EQ(holders(), before);
}

TEST(DeferredGradients, AreThoseOfThisThreadsBackwardWhereverItRuns) {
  DeferredGradients later;
  EXPECT_EQ(DeferringBackward::current(), nullptr);
  const DeferringBackward defers(later);
  EXPECT_EQ(DeferringBackward::current(), &later);
  const at::ThreadLocalState of_this_thread;  // as autograd takes it along
  std::thread([&] {
    EXPECT_EQ(DeferringBackward::current(), nullptr) << "another thread's own backward";
    const at::ThreadLocalStateGuard as_autograd(of_this_thread);
    EXPECT_EQ(DeferringBackward::current(), &later);
  }).join();
}

TEST(DeferredGradients, AreComputedAtOnceWhereNobodyWaitsForThem) {
  LateLayers layers(false), wanted(false);
  DeferredGradients later;
  layers.all[0]->tensor.register_hook([](const at::Tensor& gradient) { return gradient; });
  torch::autograd::impl::set_post_acc_grad_hooks(layers.row.parameters()[0]->tensor, nullptr);
  wanted.backward(0);
  for (Parameter* parameter : layers.row.parameters()) parameter->tensor.grad().zero_();
  layers.backward(0, later);
  EXPECT_EQ(later.size(), 0U) << "a hook needs one weight's gradient, another weight has no GradientState";
  for (size_t i = 0; i < layers.all.size(); ++i) {
    EXPECT_TRUE(at::equal(layers.all[i]->tensor.grad(), wanted.all[i]->tensor.grad())) << layers.all[i]->name;
  }
}

}  // namespace
}  // namespace meshtrain::testing
