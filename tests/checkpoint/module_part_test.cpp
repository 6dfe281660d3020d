// A module in a ModulePart: its first values, its use after training, and mistakes in a step.
#include "runtime/training/trainer/module_part.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <stdexcept>

#include "mesh/agree.h"
#include "mesh/device/aten.h"
#include "runtime/training/trainer/trainer.h"
#include "tests/support/hosts.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr ShardingMode kModuleModes[] = {ShardingMode::NoShard, ShardingMode::ShardOptimizer, ShardingMode::ShardGradOp,
                                         ShardingMode::FullShard};

torch::nn::Linear drawn_layer(int seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  torch::nn::Linear layer(5, 3);
  layer->to(at::kDouble);
  return layer;
}

/// The identity, with a backward that throws.
struct FailingBackward : torch::autograd::Function<FailingBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::domain_error("a backward that fails");
  }
};

/// A linear layer that all ranks train. Each rank draws its first values from another seed.
struct TrainedLayer {
  explicit TrainedLayer(ShardingMode mode)
      : mesh(MeshLayout({{kDataAxis, world().size()}}), world_on(Hosts::Refused)),
        net(drawn_layer(3 + world().rank())) {
    const auto forward = [this](const MicroBatch& batch) {
      at::Tensor loss = (net->forward(batch.inputs) - batch.labels).square().sum();
      return fails ? FailingBackward::apply(loss) : loss;
    };
    part = std::make_shared<ModulePart>(*net, std::vector<std::string>(), forward, mesh, FsdpOptions{.mode = mode});
    parts = {part};
    trainer = std::make_unique<Trainer>(parts, index_of(parts), mesh, TrainerOptions());
  }

  void step(int64_t num_micro_batches) {
    StepBatch batch{.micro_batches = {}, .num_counted = 2 * num_micro_batches};
    for (int64_t i = 0; i < num_micro_batches; ++i) {
      batch.micro_batches.push_back(
          {random_tensor({2, 5}, 1 + static_cast<uint64_t>(world().rank())), random_tensor({2, 3}, 100)});
    }
    trainer->step(batch, trainer->count_tokens(batch), {.learning_rate = 0.1});
  }

  DeviceMesh mesh;
  torch::nn::Linear net;
  bool fails = false;
  std::shared_ptr<ModulePart> part;
  ModelParts parts;
  std::unique_ptr<Trainer> trainer;
};

TEST(ModulePart, BeginsWithTheValuesOfTheFirstRank) {
  for (const ShardingMode mode : kModuleModes) {
    TrainedLayer trained(mode);
    trained.part->release();
    const torch::nn::Linear first = drawn_layer(3);
    EXPECT_TRUE(trained.net->weight.equal(first->weight));
    EXPECT_TRUE(trained.net->bias.equal(first->bias));
  }
}

TEST(ModulePart, AReleasedModuleHasTheTrainedValues) {
  for (const ShardingMode mode : kModuleModes) {
    auto trained = std::make_unique<TrainedLayer>(mode);
    trained->step(2);
    std::vector<at::Tensor> expected;
    trained->part->fsdp().visit_shards([&](const Parameter& each) { expected.push_back(each.tensor.clone()); });
    trained->part->release();
    torch::nn::Linear net = trained->net;
    trained.reset();
    const std::vector<at::Tensor> values = net->parameters();
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(values[i].equal(expected[i])) << i;
    EXPECT_FALSE(net->weight.equal(drawn_layer(3)->weight));
    EXPECT_EQ(net->weight.storage().nbytes(), net->weight.nbytes()) << "memory of its own";
    net->forward(random_tensor({2, 5}, 1)).sum().backward();
    EXPECT_EQ(net->weight.grad().sizes(), net->weight.sizes());
  }
}

TEST(ModulePart, IsEvaluatedBetweenSteps) {
  for (const ShardingMode mode : kModuleModes) {
    TrainedLayer trained(mode), other(mode);
    const MicroBatch batch{random_tensor({2, 5}, 7), random_tensor({2, 3}, 100)};
    const auto evaluate = [&] {
      const at::NoGradGuard no_grad;
      const at::Tensor loss = trained.part->forward({}, batch);
      trained.part->fsdp().end_forward();
      return loss.item<double>();
    };
    EXPECT_EQ(evaluate(), (drawn_layer(3)->forward(batch.inputs) - batch.labels).square().sum().item<double>());
    trained.step(2);
    other.step(2);
    evaluate();
    trained.step(2);  // as if there had been no evaluation
    other.step(2);
    trained.part->release();
    other.part->release();
    EXPECT_TRUE(trained.net->weight.equal(other.net->weight));
  }
}

TEST(Trainer, DifferentNumbersOfMicroBatchesAreAnErrorOfAllRanks) {
  TrainedLayer trained(ShardingMode::FullShard);
  trained.step(2);
  if (world().size() == 1) return;
  EXPECT_THROW(trained.step(world().rank() == 0 ? 1 : 2), AgreedError);
  EXPECT_THROW(trained.step(1 + world().rank()), AgreedError);
}

TEST(Trainer, AStepComputesGradientsUnderANoGradGuard) {
  TrainedLayer trained(ShardingMode::NoShard), other(ShardingMode::NoShard);
  trained.step(2);
  {
    const at::NoGradGuard no_grad;
    other.step(2);
  }
  EXPECT_TRUE(trained.net->weight.equal(other.net->weight));
}

TEST(Trainer, AStepWithoutALearningRateIsRefused) {
  TrainedLayer trained(ShardingMode::NoShard);
  EXPECT_THROW(trained.trainer->step({.micro_batches = {}, .num_counted = 1}, 1, {}), std::invalid_argument);
}

TEST(ModulePart, ABackwardThatThrowsEndsItsWatch) {
  TrainedLayer trained(ShardingMode::NoShard);
  trained.fails = true;
  EXPECT_THROW(trained.step(1), std::domain_error);
  const at::NoGradGuard no_grad;
  EXPECT_NO_THROW(trained.net->weight.add_(1)) << "a watch refuses operators that write parameters";
}

}  // namespace
}  // namespace meshtrain::testing
