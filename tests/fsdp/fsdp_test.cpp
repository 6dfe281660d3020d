#include "fsdp/fsdp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "mesh/device_mesh.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;
using testing::world;

/// A model that knows nothing of meshes: a chain of matrices, one unit each, the first of them used at the end too.
struct Chain {
  explicit Chain(int length) {
    for (int i = 0; i < length; ++i) {
      weights.push_back(std::make_unique<Parameter>(
          whole_parameter("weight " + std::to_string(i), {8, 8}, {}, at::TensorOptions().dtype(at::kDouble))));
      weights.back()->tensor = random_tensor({8, 8}, 10 + i).requires_grad_();
    }
  }

  std::vector<UnitSpec> units() const {
    std::vector<UnitSpec> specs;
    for (const auto& weight : weights) specs.push_back({weight->name, {weight.get()}});
    return specs;
  }

  at::Tensor loss(at::Tensor x, size_t num_used) const {
    for (size_t i = 0; i < num_used; ++i) x = at::tanh(at::matmul(x, weights[i]->tensor));
    return at::matmul(x, weights[0]->tensor).square().sum();
  }

  std::vector<std::unique_ptr<Parameter>> weights;
};

at::Tensor input_of(int rank, int micro_batch) {
  return random_tensor({4, 8}, 100 + 10 * rank + micro_batch);
}

/// Gradients of the sum of every rank's micro-batches, computed here alone.
std::vector<at::Tensor> expected_gradients(int length, size_t num_used, int num_ranks, int num_micro_batches) {
  const Chain chain(length);
  at::Tensor total = at::zeros({}, at::kDouble);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (int i = 0; i < num_micro_batches; ++i) total = total + chain.loss(input_of(rank, i), num_used);
  }
  total.backward();
  std::vector<at::Tensor> gradients;
  for (const auto& weight : chain.weights) {
    gradients.push_back(weight->tensor.grad().defined() ? weight->tensor.grad() : at::zeros({8, 8}, at::kDouble));
  }
  return gradients;
}

class FsdpTest : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(FsdpTest, SumsGradientsOverTheGroup) {
  const auto [num_micro_batches, num_used] = GetParam();
  Chain chain(4);
  std::vector<std::string> reduced;
  Fsdp fsdp(chain.units(), world(),
            [&](FlatBuffer& buffer) { reduced.push_back(buffer.segments()[0].parameter->name); });
  for (int step = 0; step < 2; ++step) {
    reduced.clear();
    fsdp.zero_gradients();
    for (int i = 0; i < num_micro_batches; ++i) {
      fsdp.begin_backward(i + 1 == num_micro_batches);
      chain.loss(input_of(world().rank(), i), num_used).backward();
      fsdp.end_backward();
    }
    EXPECT_EQ(reduced, (std::vector<std::string>{"weight 3", "weight 2", "weight 1", "weight 0"}));
    const auto expected = expected_gradients(4, num_used, world().size(), num_micro_batches);
    for (int i = 0; i < 4; ++i) {
      EXPECT_LT((chain.weights[i]->tensor.grad() - expected[i]).abs().max().item<double>(), 1e-12) << i;
    }
  }
}

// All four weights used, and two of them unused: a unit without gradients still reduces zeros.
INSTANTIATE_TEST_SUITE_P(All, FsdpTest, ::testing::Combine(::testing::Values(1, 3), ::testing::Values(4, 2)));

TEST(Fsdp, CommunicatesOnceAStepAndOnItsGroupAlone) {
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}, {"tp", 1}}), world());
  Chain chain(3);
  Fsdp fsdp(chain.units(), mesh.group("dp"));
  for (bool last : {false, false, true}) {
    fsdp.begin_backward(last);
    chain.loss(input_of(0, 0), 3).backward();
    fsdp.end_backward();
    if (last) break;
    EXPECT_EQ(mesh.traffic().total().calls, 0) << "accumulation must not communicate";
  }
  const Traffic all = mesh.traffic().total(), gradients = mesh.traffic().total("", "dp.gradients");
  EXPECT_EQ(all.calls, gradients.calls);
  if (world().size() > 1) {
    EXPECT_EQ(gradients.calls, 3);
    EXPECT_EQ(gradients.buffer_bytes, 3 * fsdp.units()[0].buffers()[0].numel() * 8);
  }
}

TEST(Fsdp, ReducesAUnitWhileTheOnesBeforeItAreInBackward) {
  Chain chain(3);
  int num_reduced = 0, reduced_before_first = -1;
  Fsdp fsdp(chain.units(), world(), [&](FlatBuffer&) { ++num_reduced; });
  fsdp.begin_backward(true);
  at::Tensor x = input_of(0, 0);
  x = at::tanh(at::matmul(x, chain.weights[0]->tensor));
  x.register_hook([&](const at::Tensor&) { reduced_before_first = num_reduced; });
  for (int i : {1, 2}) x = at::tanh(at::matmul(x, chain.weights[i]->tensor));
  x.sum().backward();
  fsdp.end_backward();
  EXPECT_EQ(num_reduced, 3);
  EXPECT_GE(reduced_before_first, 1) << "no unit was reduced before the backward reached the first";
}

TEST(Fsdp, ParametersMayOutliveIt) {
  Chain chain(2);
  { Fsdp fsdp(chain.units(), world()); }
  EXPECT_NO_THROW(chain.loss(input_of(0, 0), 2).backward());
}

TEST(Fsdp, LeavesFrozenParametersAlone) {
  Chain chain(2);
  chain.weights[1]->tensor.set_requires_grad(false);
  const at::Tensor before = chain.weights[1]->tensor.clone();
  Fsdp fsdp(chain.units(), world());
  fsdp.begin_backward(true);
  chain.loss(input_of(world().rank(), 0), 2).backward();
  fsdp.end_backward();
  EXPECT_FALSE(chain.weights[1]->tensor.grad().defined());
  EXPECT_TRUE(at::equal(chain.weights[1]->tensor, before));
}

}  // namespace
}  // namespace meshtrain
