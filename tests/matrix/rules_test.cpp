// The comparison detects broken rules: each rule of arithmetic is broken on purpose, and the result must differ from
// one rank.

#include <gtest/gtest.h>

#include <algorithm>

#include "mesh/device/aten.h"
#include "mesh/skipped_sums.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/training/data/dataset.h"
#include "runtime/training/model/initialize.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// Returns a cell in fp64 on a mesh of all ranks along one axis.
Cell cell_along(const std::string& axis) {
  const int64_t n = world().size();
  const Variant variant{"llama", false, "mha", "uneven", "one", "fp64", "adamw"};
  return {variant,      axis == "dp" ? n : 1, axis == "tp" ? n : 1, axis == "cp" ? n : 1,
          "all_gather", "contiguous",         axis == "tp",         1};
}

/// A trainer, and the data of its first step.
struct FirstStep {
  FirstStep(Recipe the_recipe, DeviceMesh the_mesh)
      : recipe(std::move(the_recipe)),
        mesh(std::move(the_mesh)),
        trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU) {
    const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
    batch = read_step(dataset, recipe.train, mesh, trainer.layout(), 0);
  }

  /// Returns the loss of the step when `counted` labels count.
  double loss(int64_t counted) { return trainer.step(batch, counted, {1e-3}).loss.item<double>(); }

  Recipe recipe;
  DeviceMesh mesh;
  TransformerTrainer trainer;
  StepBatch batch;
};

class Rules : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "a mesh of one rank has no rule to break; run with 2, 4 and 8";
    if (world().rank() == 0) write_tokens(folder_.path());
    world().barrier();
  }

  DeviceMesh mesh_of(const Cell& cell, const Group& ranks = world()) const {
    return DeviceMesh(MeshLayout({{"dp", cell.dp}, {"cp", cell.cp}, {"tp", cell.tp}}), ranks);
  }
  Recipe recipe_for(const Cell& cell) const { return recipe_of(cell, /*alone=*/false, folder_.path()); }
  Trace reference_for(const Cell& cell) const {
    return train(recipe_of(cell, /*alone=*/true, folder_.path()), one_rank_mesh());
  }

  /// Returns true when at least one rank sees a difference.
  static bool noticed(const std::string& differences) {
    at::Tensor any = at::full({1}, differences.empty() ? 0 : 1, at::kLong);
    world().all_reduce(any, Reduce::Max).wait();
    return any.item<int64_t>() != 0;
  }

  /// Trains on a mesh without the sums for `purpose`, and, to show that the sums matter, on one with them.
  void expect_noticed_without(const std::string& purpose, const Cell& cell) const {
    const Trace reference = reference_for(cell);
    EXPECT_EQ(train_and_compare(recipe_for(cell), mesh_of(cell), {reference, {}}), "");
    const DeviceMesh broken = mesh_of(cell, skip_sums(world(), purpose));
    EXPECT_TRUE(noticed(train_and_compare(recipe_for(cell), broken, {reference, {}}))) << "without " << purpose;
  }

  /// Returns the loss of the first step that `trainer` computes for `batch` with `sequence`.
  double loss(TransformerTrainer& trainer, const MicroBatch& batch, const Sequence& sequence,
              const DeviceMesh& mesh) const {
    at::NoGradGuard no_grad;
    at::Tensor sum = trainer.sharded_model().forward(batch.inputs, {sequence, batch.labels}).reshape({1}).clone();
    mesh.group(std::set<std::string>{"dp", "cp"}).all_reduce(sum).wait();
    return sum.item<double>();
  }

  const ScratchFolder folder_{world()};
};

TEST_F(Rules, Loss_AMeanOfMeansIsNoticed) {
  const Cell cell = cell_along("dp");
  FirstStep first(recipe_for(cell), mesh_of(cell));
  const int64_t own_tokens = std::max<int64_t>(first.batch.num_counted, 1);
  const double loss = first.loss(own_tokens * world().size());
  const double wanted = reference_for(cell).losses[0];
  EXPECT_TRUE(noticed(std::abs(loss - wanted) > 1e-10 * wanted ? "differs" : ""));
}

TEST_F(Rules, Sums_OverDp) {
  expect_noticed_without("dp.gradients", cell_along("dp"));
}
TEST_F(Rules, Sums_OverCp) {
  expect_noticed_without("cp.gradients", cell_along("cp"));
}
TEST_F(Rules, Sums_OverTpOfNormsUnderSequenceParallel) {
  expect_noticed_without("tp.gradients", cell_along("tp"));
}
TEST_F(Rules, Sums_OverTpOfNormsOverHeads) {
  Cell cell = cell_along("tp");
  cell.variant.family = "qwen3";
  cell.sequence_parallel = false;
  expect_noticed_without("tp.gradients", cell);
}
TEST_F(Rules, Sums_InsideTensorParallelLayers) {
  Cell cell = cell_along("tp");
  cell.sequence_parallel = false;
  expect_noticed_without("tp.linear", cell);
}

TEST_F(Rules, Ownership_ANormOfOwnShardsIsNoticed) {
  expect_noticed_without("vote", cell_along("tp"));
}

TEST_F(Rules, Ownership_EachElementHasOneOwner) {
  for (const char* axis : {"dp", "cp", "tp"}) {
    const Cell cell = cell_along(axis);
    const DeviceMesh mesh = mesh_of(cell);
    TransformerTrainer trainer(resolve(recipe_for(cell), mesh.layout()), mesh, at::kCPU);
    // Each rank marks the elements that it owns for the norm; together, every element must be marked once.
    int64_t owned = 0, elements = 0, padding = 0;
    for (const OwnedRange& range : owned_ranges({{&trainer.fsdp(), trainer.replicas()}})) {
      for (const Segment& segment : range.buffer->segments()) {
        const int64_t begin = std::max(range.offset, segment.offset);
        const int64_t end = std::min(range.offset + range.numel, segment.offset + segment.numel);
        owned += std::max<int64_t>(end - begin, 0);
      }
    }
    for (const Parameter* parameter : trainer.model().parameters()) {
      const int64_t full = c10::multiply_integers(parameter->global_shape);
      elements += full;
      if (!parameter->sharded_over.empty()) {
        padding += c10::multiply_integers(parameter->shape) * mesh.size("tp") - full;
      }
    }
    at::Tensor total = at::full({1}, owned, at::kLong);
    world().all_reduce(total).wait();
    EXPECT_EQ(total.item<int64_t>(), elements + padding) << axis;
  }
}

TEST_F(Rules, Initialisation_ByLocalIndexIsNoticed) {
  const Cell cell = cell_along("tp");
  const Recipe recipe = recipe_for(cell);
  const DeviceMesh mesh = mesh_of(cell);
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  const DeviceMesh alone = one_rank_mesh();
  TransformerTrainer on_one_rank(resolve(recipe_of(cell, /*alone=*/true, folder_.path()), alone.layout()), alone,
                                 at::kCPU);
  std::map<std::string, at::Tensor> wanted;
  for (const Parameter* parameter : on_one_rank.model().parameters()) {
    wanted[parameter->name] = parameter->tensor.detach();
  }
  std::string differences;
  for (Parameter* parameter : trainer.model().parameters()) {
    Parameter local = *parameter;  // as if the shard were the complete parameter
    local.box.start.assign(local.box.start.size(), 0);
    local.global_shape = local.box.size;
    if (local.valid().numel() > 0) initialize(local, static_cast<uint64_t>(recipe.train.seed));
    const at::Tensor drawn = parameter->valid().detach();
    if (!at::equal(drawn, part(wanted.at(parameter->name), parameter->box))) differences += parameter->name;
  }
  EXPECT_TRUE(noticed(differences));
}

TEST_F(Rules, Data_TheSameSamplesOnEveryDpRankAreNoticed) {
  const Cell cell = cell_along("dp");
  FirstStep first(recipe_for(cell), mesh_of(cell));
  MicroBatch& samples = first.batch.micro_batches[0];
  world().broadcast(samples.inputs, 0).wait();
  world().broadcast(samples.labels, 0).wait();
  first.batch.num_counted = samples.labels.ne(kIgnoredLabel).sum().item<int64_t>();
  const double loss = first.loss(first.trainer.count_tokens(first.batch));
  const double wanted = reference_for(cell).losses[0];
  EXPECT_TRUE(noticed(std::abs(loss - wanted) > 1e-10 * wanted ? "differs" : ""));
}

TEST_F(Rules, TiedEmbeddings_AHeadOfItsOwnIsNoticed) {
  Cell cell = cell_along("dp");
  cell.variant.tied = true;
  const Trace reference = reference_for(cell);
  Recipe untied = recipe_for(cell);
  untied.model.shape.tie_word_embeddings = false;
  FirstStep first(untied, mesh_of(cell));
  std::map<std::string, const Parameter*> parameters;
  for (const Parameter* parameter : first.trainer.model().parameters()) parameters[parameter->name] = parameter;
  const Parameter& embedding = *parameters.at("model.embed_tokens.weight");
  parameters.at("lm_head.weight")->tensor.detach().copy_(embedding.tensor.detach());  // equal values in separate memory

  const int64_t counted = first.trainer.count_tokens(first.batch);
  const StepOutcome outcome = first.trainer.step(first.batch, counted, {1e-3});
  EXPECT_NEAR(outcome.loss.item<double>(), reference.losses[0], 1e-10) << "the forward is the same";
  const auto expected = std::ranges::find(reference.parameters, embedding.name, &TracedParameter::name);
  ASSERT_NE(expected, reference.parameters.end());
  const double error = relative_error(embedding.tensor.grad(), expected->gradient);
  EXPECT_TRUE(noticed(error > 1e-10 ? "differs" : ""));
  EXPECT_GT(std::abs(outcome.grad_norm.item<double>() - reference.grad_norms[0]), 1e-10);
}

TEST_F(Rules, Positions_LocalOnesAreNoticed) {
  const Cell cell = cell_along("cp");
  FirstStep first(recipe_for(cell), mesh_of(cell));
  const MicroBatch& batch = first.batch.micro_batches[0];
  const SequenceLayout& layout = first.trainer.layout();
  const auto rotary = [&](const at::Tensor& positions) {
    return make_rotary(first.recipe.model.shape, positions, at::kDouble, at::kCPU);
  };
  const double right = loss(first.trainer, batch, {layout, rotary(layout.positions())}, first.mesh);
  const double wrong = loss(first.trainer, batch, {layout, rotary(at::arange(layout.local_length()))}, first.mesh);
  EXPECT_NEAR(right / static_cast<double>(first.trainer.count_tokens(first.batch)), reference_for(cell).losses[0],
              1e-10);
  EXPECT_GT(std::abs(wrong - right), 1e-6);
}

TEST_F(Rules, Labels_ShiftedAfterTheSplitAreNoticed) {
  const Cell cell = cell_along("cp");
  FirstStep first(recipe_for(cell), mesh_of(cell));
  MicroBatch& batch = first.batch.micro_batches[0];
  const SequenceLayout& layout = first.trainer.layout();
  const Sequence sequence{layout, make_rotary(first.recipe.model.shape, layout.positions(), at::kDouble, at::kCPU)};
  const double right = loss(first.trainer, batch, sequence, first.mesh);
  const int64_t s = layout.local_length();
  batch.labels =
      batch.inputs.view({-1, s}).roll(-1, 1).reshape(-1).masked_fill(batch.labels.eq(kIgnoredLabel), kIgnoredLabel);
  EXPECT_GT(std::abs(loss(first.trainer, batch, sequence, first.mesh) - right), 1e-6);
}

}  // namespace
}  // namespace meshtrain::testing
