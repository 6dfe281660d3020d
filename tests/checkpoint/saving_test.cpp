// Saves and resumes a module in a ModulePart by the functions that users of the library call.
#include "runtime/training/trainer/saving.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <memory>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/training/trainer/module_part.h"
#include "tests/support/faults/faults.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using Steps = std::vector<int64_t>;

/// A linear layer that all ranks of the world train.
class Trained {
 public:
  explicit Trained(const std::string& optimizer, ShardingMode mode = ShardingMode::FullShard, bool has_bias = true)
      : mesh_(MeshLayout({{kDataAxis, world().size()}}), world()), layer_(layer(has_bias)) {
    const auto forward = [this](const MicroBatch& batch) {
      return (layer_->forward(batch.inputs) - batch.labels).square().sum();
    };
    parts_ = {
        std::make_shared<ModulePart>(*layer_, std::vector<std::string>(), forward, mesh_, FsdpOptions{.mode = mode})};
    TrainerOptions options;
    options.optimizer.name = optimizer;
    options.clip_norm = 0;
    trainer_ = std::make_unique<Trainer>(parts_, index_of(parts_), mesh_, options);
  }

  Trainer& trainer() { return *trainer_; }

  /// Makes a step; each rank uses its own samples.
  void step() {
    const StepBatch batch{.micro_batches = {samples_of(world().rank())}, .num_counted = 2};
    trainer_->step(batch, trainer_->count_tokens(batch), {.learning_rate = kLearningRate});
  }

  /// Returns the parameters after one step of gradient descent on one rank, with the samples of all ranks.
  static std::vector<at::Tensor> values_alone() {
    torch::nn::Linear alone = layer();
    for (int rank = 0; rank < world().size(); ++rank) {
      const MicroBatch batch = samples_of(rank);
      ((alone->forward(batch.inputs) - batch.labels).square().sum() / (2 * world().size())).backward();
    }
    std::vector<at::Tensor> values;
    for (const at::Tensor& parameter : alone->parameters()) {
      values.push_back(parameter.detach() - kLearningRate * parameter.grad());
    }
    return values;
  }

  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> values;
    parts_.front()->groups().front().fsdp->visit_values([&](const Unit& unit) {
      for (const Parameter* parameter : unit.parameters()) values.push_back(parameter->tensor.detach().clone());
    });
    return values;
  }

 private:
  static constexpr double kLearningRate = 0.1;

  static MicroBatch samples_of(int rank) {
    return {random_tensor({2, 5}, 1 + static_cast<uint64_t>(rank)), random_tensor({2, 3}, 100)};
  }

  static torch::nn::Linear layer(bool has_bias = true) {
    at::manual_seed(3);
    torch::nn::Linear layer(torch::nn::LinearOptions(5, 3).bias(has_bias));
    layer->to(at::kDouble);
    return layer;
  }

  DeviceMesh mesh_;
  torch::nn::Linear layer_;
  ModelParts parts_;
  std::unique_ptr<Trainer> trainer_;
};

/// Returns the steps in the folder, at a time when no rank changes it.
Steps steps_in(const CheckpointFolder& folder) {
  world().barrier();
  const Steps steps = folder.steps();
  world().barrier();
  return steps;
}

TEST(ModulePart, EqualsOneRank) {
  for (const ShardingMode mode : {ShardingMode::NoShard, ShardingMode::ShardOptimizer, ShardingMode::FullShard}) {
    Trained trained("sgd", mode);
    trained.step();
    const std::vector<at::Tensor> wanted = Trained::values_alone(), values = trained.values();
    ASSERT_EQ(values.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_LT(relative_error(values[i], wanted[i]), 1e-12) << i;
  }
}

TEST(Saving, ResumesBitByBit) {
  const ScratchFolder scratch(world());
  const fs::path folder = scratch.path() / "checkpoints";
  Trained first("adamw"), second("adamw"), third("adamw");
  EXPECT_FALSE(resume(second.trainer(), folder));
  first.step();
  save(first.trainer(), {.step = 1, .num_samples = 7}, folder);
  first.step();
  save(first.trainer(), {.step = 2, .num_samples = 14}, folder);
  const std::optional<TrainingState> state = resume(second.trainer(), folder);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->step, 2);
  EXPECT_EQ(state->num_samples, 14);
  EXPECT_EQ(state->num_updates, 2);
  first.step();
  second.step();
  for (int i = 0; i < 3; ++i) third.step();
  const std::vector<at::Tensor> wanted = first.values(), resumed = second.values(), unbroken = third.values();
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(at::equal(wanted[i], resumed[i])) << i;
    EXPECT_TRUE(at::equal(wanted[i], unbroken[i])) << i;
  }
}

TEST(Saving, RemovesAndSetsAside) {
  const ScratchFolder scratch(world());
  const CheckpointFolder folder(scratch.path() / "checkpoints");
  Trained trained("adamw");
  for (const int64_t step : {10, 20, 30, 40}) save(trained.trainer(), {.step = step}, folder.folder(), {.last = 2});
  EXPECT_EQ(steps_in(folder), (Steps{30, 40}));
  if (world().rank() == 0) fs::create_directory(folder.partial(50, "killed"));
  save(trained.trainer(), {.step = 30}, folder.folder(), {.last = 2});
  EXPECT_EQ(steps_in(folder), Steps{30});
  EXPECT_EQ(folder.abandoned(), Steps{40});
  EXPECT_FALSE(fs::exists(folder.partial(50, "killed")));
  world().barrier();
}

TEST(Saving, TheReplacedCheckpointStaysUntilTheNewOneIsDurable) {
  const ScratchFolder scratch(world());
  const CheckpointFolder folder(scratch.path() / "checkpoints");
  Trained trained("adamw"), again("adamw");
  save(trained.trainer(), {.step = 5, .num_samples = 1}, folder.folder());
  inject_faults("fsync:manifest.json:ENOSPC");
  EXPECT_NE(message<AgreedError>([&] { save(trained.trainer(), {.step = 5, .num_samples = 2}, folder.folder()); }), "");
  inject_faults("");
  EXPECT_EQ(steps_in(folder), Steps{5});
  EXPECT_EQ(resume(again.trainer(), folder.folder())->num_samples, 1);
  save(again.trainer(), {.step = 5, .num_samples = 3}, folder.folder());
  EXPECT_EQ(resume(trained.trainer(), folder.folder())->num_samples, 3);
  EXPECT_EQ(folder.abandoned(), Steps());
  world().barrier();
}

TEST(Saving, AbandonedCheckpointsAloneGiveAWarning) {
  const ScratchFolder scratch(world());
  const CheckpointFolder folder(scratch.path() / "checkpoints");
  Trained trained("adamw");
  save(trained.trainer(), {.step = 5}, folder.folder());
  if (world().rank() == 0) folder.abandon({5});
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(resume(trained.trainer(), folder.folder()));
  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(has(warning, "rename abandoned-step-00000005 to step-00000005"), world().rank() == 0) << warning;
}

TEST(Saving, AnotherRunsFolderIsRefusedAndLeftAlone) {
  const ScratchFolder scratch(world());
  const CheckpointFolder folder(scratch.path() / "checkpoints"), other(scratch.path() / "other");
  Trained owner("adamw"), stranger("adamw");
  for (const int64_t step : {2, 4}) save(owner.trainer(), {.step = step}, folder.folder());
  if (world().rank() == 0) fs::create_directory(folder.partial(6, "in-progress"));
  save(stranger.trainer(), {.step = 1}, other.folder());
  const auto saves = [&] { save(stranger.trainer(), {.step = 2}, folder.folder(), {.last = 1}); };
  const std::string refusal = message<InputError>(saves);
  EXPECT_TRUE(has(refusal, "which belongs to another run: resume() from it before the first step")) << refusal;
  EXPECT_EQ(steps_in(folder), (Steps{2, 4}));
  EXPECT_TRUE(fs::exists(folder.partial(6, "in-progress")));
  world().barrier();
  resume(stranger.trainer(), folder.folder());
  saves();
  EXPECT_EQ(steps_in(folder), Steps{2});
  save(stranger.trainer(), {.step = 2}, other.folder());
  EXPECT_EQ(steps_in(other), (Steps{1, 2}));
}

TEST(Saving, ACopiedCheckpointWithoutTheRunsIdIsContinued) {
  const ScratchFolder scratch(world());
  const CheckpointFolder folder(scratch.path() / "checkpoints"), copied(scratch.path() / "copied");
  Trained trained("adamw"), stranger("adamw");
  save(trained.trainer(), {.step = 2}, folder.folder());
  if (world().rank() == 0) {
    fs::create_directory(copied.folder());
    fs::copy(folder.step(2), copied.step(2));
  }
  world().barrier();
  EXPECT_NE(message<InputError>([&] { save(stranger.trainer(), {.step = 3}, copied.folder()); }), "");
  ASSERT_TRUE(resume(trained.trainer(), copied.folder()));
  for (const int64_t step : {3, 4}) save(trained.trainer(), {.step = step}, copied.folder());
  EXPECT_EQ(steps_in(copied), (Steps{2, 3, 4}));
}

TEST(Saving, RefusesAnotherOptimizersState) {
  const ScratchFolder scratch(world());
  const fs::path folder = scratch.path() / "checkpoints";
  Trained saved("sgd"), resumed("adamw");
  saved.step();
  save(saved.trainer(), {.step = 1}, folder);
  const std::string refusal = message<InputError>([&] { resume(resumed.trainer(), folder); });
  EXPECT_TRUE(has(refusal, "exp_avg")) << refusal;
  EXPECT_TRUE(refusal.starts_with("rank 0")) << refusal;
}

TEST(Saving, RefusesASmallerModel) {
  const ScratchFolder scratch(world());
  const CheckpointFolder folder(scratch.path() / "checkpoints");
  Trained saved("adamw"), smaller("adamw", ShardingMode::FullShard, /*has_bias=*/false), stateless("sgd");
  saved.step();
  save(saved.trainer(), {.step = 1}, folder.folder());
  EXPECT_EQ(message<InputError>([&] { resume(smaller.trainer(), folder.folder()); }),
            folder.step(1).string() + " has 1 parameter that the model does not have: bias: resume it with the model " +
                "that saved it, or choose another folder");
  EXPECT_THROW(save(smaller.trainer(), {.step = 2}, folder.folder()), InputError)
      << "the refused folder is another run's";
  EXPECT_TRUE(resume(stateless.trainer(), folder.folder())) << "state that an optimizer does not need";
}

}  // namespace
}  // namespace meshtrain::testing
