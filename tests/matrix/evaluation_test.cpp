// The loss on held-out samples is that of one rank over all their counted tokens, and does not affect the training.

#include "runtime/training/transformer/evaluation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "runtime/program/recipe/decisions.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/full_run.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// Returns meshes of all ranks; tied weights are one unit for the complete step.
std::vector<Cell> cells(const std::string& precision) {
  const int64_t n = world().size();
  const auto variant = [&](const std::string& family, bool tied, const std::string& ignored,
                           const std::string& documents) {
    return Variant{family, tied, "mha", ignored, documents, precision, "adamw"};
  };
  const Variant plain = variant("llama", false, "uneven", "one"), tied = variant("qwen3", true, "none", "ignored"),
                packed = variant("qwen2", false, "uneven", "packed");
  if (n == 1)
    return {{tied, 1, 1, 1, "none", "contiguous", false, 2}, {plain, 1, 1, 1, "none", "contiguous", false, 1}};
  std::vector<Cell> all = {{plain, n, 1, 1, "none", "contiguous", false, 2, "no_shard"},
                           {tied, n, 1, 1, "none", "contiguous", false, 1, "full_shard"},
                           {packed, n, 1, 1, "none", "contiguous", false, 2, "shard_grad_op"},
                           {tied, n, 1, 1, "none", "contiguous", false, 1, "hybrid_shard"},
                           {plain, n, 1, 1, "none", "contiguous", false, 1, "full_shard+"},
                           {packed, 1, n, 1, "none", "contiguous", true, 2, "no_shard"},
                           {tied, 1, 1, n, "ring", "zigzag", false, 1, "shard_optimizer"},
                           {plain, 1, 1, n, "all_gather", "contiguous", false, 1, "full_shard"}};
  Cell pipeline{packed, 1, 1, 1, "none", "contiguous", false, 2, "no_shard", "none", "block", n};
  pipeline.variant.layers = n;
  all.push_back(pipeline);
  if (n == 4) {
    Cell interleaved{tied, 1, 1, 2, "ring", "zigzag", false, 2, "full_shard", "none", "block", 2, "interleaved"};
    interleaved.variant.layers = 5;
    all.push_back(interleaved);
  }
  if (n == 4) all.push_back({packed, 2, 2, 1, "none", "contiguous", true, 1, "full_shard", "none", "sublayer"});
  if (n == 8) all.push_back({tied, 2, 2, 2, "ring", "zigzag", true, 2, "full_shard"});
  if (n == 8) all.push_back({packed, 2, 2, 2, "ulysses", "contiguous", false, 1, "shard_optimizer"});
  return all;
}

class EvaluationTest : public ::testing::Test {
 protected:
  EvaluationTest() {
    if (world().rank() == 0) write_tokens(folder_.path());
    world().barrier();
  }

  /// Returns the recipe of `cell`, with the first `samples` of the file as held-out samples.
  Recipe recipe(const Cell& cell, bool alone, int64_t samples) const {
    Recipe recipe = recipe_of(cell, alone || world().size() == 1, folder_.path());
    static_cast<SourceOptions&>(recipe.evaluate) = recipe.data;
    recipe.evaluate.samples = samples;
    return recipe;
  }

  const ScratchFolder folder_{world()};
};

EvaluationMetrics run_all(const Evaluation& evaluation, const Trainer& trainer) {
  return *evaluation.run_unless(trainer.parts(), trainer.mesh(), trainer.pipeline().links, [] { return false; });
}

/// Returns the loss of a step of one rank on these samples: another way to the same numbers.
HeldOutLoss as_a_step(Recipe recipe) {
  recipe.train.global_batch = *recipe.evaluate.samples;
  recipe.train.micro_batch = 1;
  const DeviceMesh mesh = one_rank_mesh();
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  const Dataset dataset(recipe.evaluate, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
  const StepBatch batch = read_batch(dataset, recipe.train, mesh, trainer.layout(), 0);
  return {trainer.compute_gradients(batch, batch.num_counted, {}).loss.item<double>(), batch.num_counted};
}

TEST_F(EvaluationTest, IsTheExactMeanOverAllTokensOnEveryMesh) {
  for (const Cell& cell : cells("fp64")) {
    for (const int64_t samples : {1, 13, 16, 37}) {  // fewer than the ranks, and not a multiple of them
      const Recipe asked = recipe(cell, /*alone=*/false, samples);
      const DeviceMesh mesh = mesh_of(cell);
      TransformerTrainer trainer(resolve(asked, mesh.layout()), mesh, at::kCPU);
      const EvaluationMetrics found =
          run_all(Evaluation(asked.evaluate, trainer.options(), asked.train.steps), trainer);
      if (world().rank() != 0) continue;
      const HeldOutLoss wanted = as_a_step(recipe(cell, /*alone=*/true, samples));
      EXPECT_EQ(found.tokens, wanted.num_counted) << cell.describe();
      EXPECT_NEAR(found.loss, wanted.mean, 1e-10 * wanted.mean) << cell.describe() << ", " << samples << " samples";
    }
    world().barrier();
  }
}

/// The losses of a few steps, and the weights after them.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

Trained train_and_evaluate(const Recipe& recipe, const DeviceMesh& mesh, const Evaluation* evaluation) {
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
  Trained trained;
  if (evaluation != nullptr) run_all(*evaluation, trainer);
  for (int64_t step = 0; step < 3; ++step) {
    const StepBatch batch = read_step(dataset, recipe.train, mesh, trainer.layout(), step);
    trained.losses.push_back(trainer.step(batch, trainer.count_tokens(batch), {1e-3}).loss.item<double>());
    if (evaluation != nullptr) run_all(*evaluation, trainer);
  }
  for (const ParameterGroup& group : trainer.groups()) {
    group.fsdp->visit_shards(
        [&](const Parameter& parameter) { trained.weights[parameter.name] = parameter.valid().clone(); });
  }
  return trained;
}

TEST_F(EvaluationTest, DoesNotChangeABitOfTheTraining) {
  for (const char* precision : {"fp32", "bf16_mixed"}) {
    if (world().size() == 8 && precision == std::string("fp32") && !is_full_run()) continue;
    for (const Cell& cell : cells(precision)) {
      const Recipe asked = recipe(cell, /*alone=*/false, 13);
      const DeviceMesh mesh = mesh_of(cell);
      const Evaluation evaluation(asked.evaluate, resolve(asked, mesh.layout()), asked.train.steps);
      const Trained with = train_and_evaluate(asked, mesh, &evaluation),
                    without = train_and_evaluate(asked, mesh, nullptr);
      EXPECT_EQ(with.losses, without.losses) << cell.describe();
      for (const auto& [name, weights] : without.weights) {
        EXPECT_TRUE(at::equal(with.weights.at(name), weights)) << name << " on " << cell.describe();
      }
    }
  }
}

TEST_F(EvaluationTest, NeedsNoMoreMemoryThanAStep) {
  for (const Cell& cell : cells("fp32")) {
    const Recipe asked = recipe(cell, /*alone=*/false, 13);
    const DeviceMesh mesh = mesh_of(cell);
    HostMemory& memory = HostMemory::counted();
    TransformerTrainer trainer(resolve(asked, mesh.layout()), mesh, at::kCPU);
    const Dataset dataset(asked.data, asked.train.sequence_length, asked.model.shape.vocab_size, 0);
    const Evaluation evaluation(asked.evaluate, resolve(asked, mesh.layout()), asked.train.steps);
    const StepBatch batch = read_step(dataset, asked.train, mesh, trainer.layout(), 0);
    const int64_t counted = trainer.count_tokens(batch);
    trainer.step(batch, counted, {1e-3});
    const auto peak = [&](const std::function<void()>& action) {
      int64_t least = std::numeric_limits<int64_t>::max();
      for (int i = 0; i < 4; ++i) {  // the communication thread decides how long a collective's tensors are held
        const int64_t before = memory.live();
        memory.restart_peak();
        action();
        least = std::min(least, memory.peak() - before);
      }
      return least;
    };
    const int64_t of_step = peak([&] { trainer.step(batch, counted, {1e-3}); });
    const int64_t of_evaluation = peak([&] { run_all(evaluation, trainer); });
    EXPECT_LT(of_evaluation, of_step) << cell.describe();
  }
}

// The last rank alone asks, before the second micro-batch.
TEST_F(EvaluationTest, EndsOnAllRanksWhenOneIsAskedToStop) {
  for (const Cell& cell : cells("fp32")) {
    const Recipe asked = recipe(cell, /*alone=*/false, 37);
    const DeviceMesh mesh = mesh_of(cell);
    TransformerTrainer trainer(resolve(asked, mesh.layout()), mesh, at::kCPU);
    const Evaluation evaluation(asked.evaluate, resolve(asked, mesh.layout()), asked.train.steps);
    const double loss = run_all(evaluation, trainer).loss;
    int num_asked = 0;
    const bool is_last = world().rank() + 1 == world().size();
    EXPECT_FALSE(evaluation.run_unless(trainer.parts(), mesh, trainer.pipeline().links, [&] {
      return ++num_asked == 2 && is_last;
    })) << cell.describe();
    EXPECT_EQ(num_asked, 2) << cell.describe();
    const std::optional<EvaluationMetrics> again =
        evaluation.run_unless(trainer.parts(), mesh, trainer.pipeline().links, [] { return false; });
    ASSERT_TRUE(again) << cell.describe();
    EXPECT_EQ(again->loss, loss) << cell.describe();
  }
}

TEST_F(EvaluationTest, SaysWhenNothingCounts) {
  Cell cell = cells("fp32").front();
  cell.variant.ignored = "uneven";
  Recipe asked = recipe(cell, /*alone=*/false, 5);
  asked.evaluate.loss_mask = folder_.path() / "none.bin";
  if (world().rank() == 0) {
    const auto size = std::filesystem::file_size(folder_.path() / "mask.bin");
    std::ofstream(asked.evaluate.loss_mask, std::ios::binary) << std::string(size, '\0');
  }
  world().barrier();
  const Decisions decisions = resolve(asked, mesh_of(cell).layout());
  EXPECT_THROW(Evaluation(asked.evaluate, decisions, asked.train.steps), InputError);
}

TEST_F(EvaluationTest, ComesEveryFewStepsAndAtTheLast) {
  Recipe asked = recipe(cells("fp32").front(), /*alone=*/true, 5);
  asked.train.steps = 10;
  const auto due = [&](int64_t every) {
    asked.evaluate.every = every;
    const Evaluation evaluation(asked.evaluate, resolve(asked, one_rank_mesh().layout()), asked.train.steps);
    std::vector<int64_t> steps;
    for (int64_t step = 1; step <= 10; ++step) {
      if (evaluation.is_due(step)) steps.push_back(step);
    }
    return steps;
  };
  EXPECT_EQ(due(4), (std::vector<int64_t>{4, 8, 10}));
  EXPECT_EQ(due(0), (std::vector<int64_t>{10}));
  asked.evaluate.samples = 1000;
  try {
    Evaluation(asked.evaluate, resolve(asked, one_rank_mesh().layout()), asked.train.steps);
    ADD_FAILURE() << "there are not so many";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("evaluate.samples: 1000 are requested, but "), std::string::npos);
  }
}

}  // namespace
}  // namespace meshtrain::testing
