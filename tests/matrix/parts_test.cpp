// A trainer of any parts: a Transformer in two or three parts gives the same bits as in one part, and parts need not be
// a Transformer.

#include <gtest/gtest.h>

#include <map>

#include "mesh/device/aten.h"
#include "runtime/training/model/initialize.h"
#include "runtime/training/optimizer/box_optimizer.h"
#include "runtime/training/trainer/trainer.h"
#include "runtime/training/transformer/batch.h"
#include "runtime/training/transformer/data_parallel.h"
#include "runtime/training/transformer/transformer_part.h"
#include "tests/support/small_model.h"
#include "tests/support/stages.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

DeviceMesh mesh_of(int64_t dp, int64_t tp) {
  return DeviceMesh(MeshLayout({{"dp", dp}, {"cp", 1}, {"tp", tp}}), world());
}

using Tensors = std::map<std::string, at::Tensor>;

/// The values, gradients and weights of two steps.
struct Steps {
  std::vector<at::Tensor> outcomes;
  Tensors gradients, weights;
};

/// Makes two steps of three micro-batches with a Transformer whose parts begin with the layers `cuts`.
Steps steps_of(const TrainingOptions& options, const DeviceMesh& mesh, const std::vector<int64_t>& cuts) {
  const ModelReplicas replicas = map_replicas(options.sharding, mesh);
  const auto parts = make_transformer(
      options, mesh, at::kCPU, replicas, [&](const Parameter& parameter) { initialize(parameter, options.seed); },
      stages_from(cuts, options.shape.num_hidden_layers + 2));
  const ModelParts all(parts.begin(), parts.end());
  Trainer trainer(all, index_of(all), mesh, options);
  EXPECT_EQ(trainer.groups().size(), cuts.size() + 1);
  at::manual_seed(7);
  Steps steps;
  for (int step = 0; step < 2; ++step) {
    const StepBatch batch = made_step(options, parts.front()->layout(), 3, at::kCPU);
    const StepOutcome outcome = trainer.compute_gradients(batch, trainer.count_tokens(batch), {});
    steps.outcomes.push_back(outcome.values.clone());
    for (const ParameterGroup& group : trainer.groups()) {
      group.fsdp->visit_gradients([&](const Parameter& parameter) {
        steps.gradients[parameter.name + " of step " + std::to_string(step)] = parameter.tensor.clone();
      });
    }
    trainer.update(outcome, 1e-3);
  }
  for (const ParameterGroup& group : trainer.groups()) {
    group.fsdp->visit_shards(
        [&](const Parameter& parameter) { steps.weights[parameter.name] = parameter.tensor.clone(); });
  }
  return steps;
}

void expect_equal(const Tensors& seen, const Tensors& wanted, const std::string& where) {
  ASSERT_EQ(seen.size(), wanted.size()) << where;
  for (const auto& [name, tensor] : wanted) EXPECT_TRUE(at::equal(seen.at(name), tensor)) << name << where;
}

TEST(Parts, OfATransformerGiveTheBitsOfOne) {
  const int64_t size = world().size();
  if (size > 4) GTEST_SKIP() << "4 ranks have shown it";
  for (const int64_t tp : size == 1 ? std::vector<int64_t>{1} : std::vector<int64_t>{1, 2}) {
    const DeviceMesh mesh = mesh_of(size / tp, tp);
    for (const ShardingMode mode : {ShardingMode::NoShard, ShardingMode::ShardGradOp, ShardingMode::FullShard}) {
      TrainingOptions options = small_model();
      options.sharding = {.mode = mode, .num_ranks = size / tp};
      options.sequence_parallel = tp > 1;
      const Steps wanted = steps_of(options, mesh, {});
      for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{2}, {1, 3}}) {
        const std::string where = ", " + mesh.layout().describe() + " in " + std::to_string(cuts.size() + 1) +
                                  " parts, mode " + std::to_string(static_cast<int>(mode));
        const Steps seen = steps_of(options, mesh, cuts);
        for (size_t step = 0; step < wanted.outcomes.size(); ++step) {
          EXPECT_TRUE(at::equal(seen.outcomes[step], wanted.outcomes[step])) << "step " << step << where;
        }
        expect_equal(seen.gradients, wanted.gradients, where);
        expect_equal(seen.weights, wanted.weights, where);
      }
    }
  }
}

TEST(Parts, RefuseAHeadWithoutTheEmbeddingThatItShares) {
  TrainingOptions options = small_model();
  options.shape.tie_word_embeddings = true;
  const DeviceMesh mesh = mesh_of(world().size(), 1);
  EXPECT_THROW(steps_of(options, mesh, {2}), std::invalid_argument);
}

/// A layer of a perceptron, y = tanh(x w^T); the last one returns the sum of the squared differences from the labels.
class Perceptron final : public ModelPart {
 public:
  Perceptron(const std::string& name, std::vector<int64_t> shape, bool is_last, const DeviceMesh& mesh,
             ShardingMode mode, uint64_t seed)
      : weight_(full_parameter(name, shape, {}, at::TensorOptions().dtype(at::kDouble))), is_last_(is_last) {
    const int64_t size = mesh.size();
    const ReplicaMap replicas(mesh, {"dp"}, mode == ShardingMode::NoShard ? std::nullopt : std::optional(size));
    fsdp_ = std::make_unique<Fsdp>(std::vector{UnitSpec{name, {&weight_}}}, over(replicas, {.mode = mode}));
    fsdp_->write_values([&](const Parameter& parameter) { parameter.tensor.copy_(random_tensor(shape, seed)); });
    groups_ = {{fsdp_.get(), replicas}};
  }

  at::Tensor forward(const at::Tensor& input, const MicroBatch& micro_batch) override {
    return fsdp_->run(0, [&] {
      const at::Tensor y = at::tanh(at::mm(input.defined() ? input : micro_batch.inputs, weight_.tensor.t()));
      return is_last_ ? (y - micro_batch.labels).square().sum() : y;
    });
  }
  const std::vector<ParameterGroup>& groups() const override { return groups_; }

 private:
  Parameter weight_;
  bool is_last_;
  std::unique_ptr<Fsdp> fsdp_;
  std::vector<ParameterGroup> groups_;
};

/// Gradient descent without momentum, box by box.
class Descent final : public BoxOptimizer {
 public:
  Descent(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups)
      : BoxOptimizer(options, groups, {}) {}

 protected:
  void update_box(const ParameterBox& box, double learning_rate) override {
    at::Tensor(box.values).add_(box.gradients, -learning_rate);
  }
};

TEST(Parts, NeedNotBeATransformer) {
  const DeviceMesh mesh = mesh_of(world().size(), 1);
  const std::vector<int64_t> first_shape = {7, 5}, second_shape = {3, 7};
  const auto rows = [](int rank, int micro_batch) {
    const auto seed = static_cast<uint64_t>(100 * rank + 10 * micro_batch);
    return MicroBatch{random_tensor({4, 5}, seed + 1), random_tensor({4, 3}, seed + 2)};
  };
  TrainerOptions options;
  options.optimizer.name = "sgd";
  options.clip_norm = 0;
  const OptimizerFactory make_sgd = make_optimizer, make_descent = [](const auto&of, const auto&groups, const auto&) {
    return std::make_unique<Descent>(of, groups);
  };
  for (const ShardingMode mode : {ShardingMode::NoShard, ShardingMode::FullShard}) {
    const ModelParts parts = {std::make_shared<Perceptron>("first", first_shape, false, mesh, mode, 11),
                              std::make_shared<Perceptron>("second", second_shape, true, mesh, mode, 12)};
    Trainer trainer(parts, index_of(parts), mesh, options, mode == ShardingMode::NoShard ? make_sgd : make_descent);
    at::Tensor first = random_tensor(first_shape, 11).requires_grad_(),
               second = random_tensor(second_shape, 12).requires_grad_();
    const int64_t num_rows = 8 * world().size();
    for (int step = 0; step < 3; ++step) {
      StepBatch batch;
      for (int i = 0; i < 2; ++i) batch.micro_batches.push_back(rows(world().rank(), i));
      const StepOutcome outcome = trainer.step(batch, num_rows, {.learning_rate = 0.1});

      at::Tensor loss = at::zeros({}, at::kDouble);
      for (int rank = 0; rank < world().size(); ++rank) {
        for (int i = 0; i < 2; ++i) {
          const MicroBatch own = rows(rank, i);
          const at::Tensor y = at::tanh(at::mm(at::tanh(at::mm(own.inputs, first.t())), second.t()));
          loss = loss + (y - own.labels).square().sum() / num_rows;
        }
      }
      loss.backward();
      EXPECT_NEAR(outcome.read().loss, loss.item<double>(), 1e-12);
      const at::Tensor squares = first.grad().square().sum() + second.grad().square().sum();
      EXPECT_NEAR(outcome.read().grad_norm, std::sqrt(squares.item<double>()), 1e-12);
      const at::NoGradGuard no_grad;
      for (at::Tensor* weight : {&first, &second}) {
        weight->add_(weight->grad(), -0.1);
        weight->mutable_grad().zero_();
      }
    }
    const Tensors wanted = {{"first", first.detach()}, {"second", second.detach()}};
    for (const ParameterGroup& group : trainer.groups()) {
      group.fsdp->visit_shards([&](const Parameter& parameter) {
        EXPECT_LT(relative_error(parameter.tensor, wanted.at(parameter.name)), 1e-12) << parameter.name;
      });
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
