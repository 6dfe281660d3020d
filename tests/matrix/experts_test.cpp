// Mixtures of experts and their balancing on every kind of mesh: what one rank computes, in fp64, in which every token
// has the same experts.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/program/recipe/decisions.h"
#include "runtime/training/data/dataset.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/full_run.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

Variant mixture_of(const char* family, const char* documents, const char* optimizer) {
  return {family, std::string(family) == "qwen2_moe", "mha", "uneven", documents, "fp64", optimizer};
}

/// Returns meshes of all ranks along each axis, with all experts on each rank or cut over ep.
std::vector<Cell> mixture_cells(const char* family) {
  const int64_t n = world().size();
  const Variant packed = mixture_of(family, "packed", "sgd"), one = mixture_of(family, "one", "muon");
  std::vector<Cell> all = {{packed, n, 1, 1, "none", "contiguous", false, 2, "full_shard", "full", "sublayer"},
                           {one, n, 1, 1, "none", "contiguous", false, 1, "shard_grad_op", "selective"},
                           {packed, 1, n, 1, "none", "contiguous", false, 2, "no_shard", "none"},
                           {packed, 1, n, 1, "none", "contiguous", true, 1, "no_shard", "alternate"},
                           {one, 1, n, 1, "none", "contiguous", true, 2, "no_shard", "selective"},
                           {packed, 1, 1, n, "ring", "zigzag", false, 1, "full_shard", "full"}};
  if (n == 4) all.push_back({packed, 2, 2, 1, "none", "contiguous", true, 2, "hybrid_shard", "full"});
  Cell pipeline{mixture_of(family, "packed", "adamw"), 1, 1, 1, "none", "contiguous", false, n, "no_shard", "none"};
  pipeline.variant.layers = std::max<int64_t>(n, 2);
  pipeline.pp = n;
  if (n > 1) all.push_back(pipeline);
  if (n == 1) return all;
  const int64_t most = std::string(family) == "olmoe" ? 1 : std::string(family) == "granitemoe" ? 2 : n;
  for (const size_t cut : {1, 2, 4, 5}) all[cut].ep = most;
  if (n == 4) {
    all.back().ep = 1;
    all[6].ep = std::min<int64_t>(most, 2);
    Cell both = pipeline;
    both.pp = 2, both.dp = 2, both.ep = std::min<int64_t>(most, 2), both.schedule = "zb_h1";
    all.push_back(both);
  }
  if (n == 4 && std::string(family) == "mixtral") {  // experts that are gathered again when their block is recomputed
    all.push_back({packed, n, 1, 1, "none", "contiguous", false, 1, "full_shard", "full"});
    all.back().ep = 2;
  }
  // gpt_oss has biases, cut or of all rows, and sinks; the other families differ in their routers alone.
  if (std::string(family) == "gpt_oss") return {all[1], all[2], all[5], all.back()};
  const std::set<std::string> complete = {"mixtral", "qwen2_moe", "glm4_moe"};
  return complete.contains(family) ? all : std::vector<Cell>{all[0], all[4], all.back()};
}

class Experts : public ::testing::TestWithParam<const char*> {};

TEST_P(Experts, ComputeOnEveryMeshWhatOneRankComputes) {
  if (world().size() == 8) GTEST_SKIP() << "4 ranks have shown it";
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  std::map<Variant, Reference> references;
  for (const Cell& cell : mixture_cells(GetParam())) {
    if (world().rank() == 0 && !references.contains(cell.variant)) {
      references.emplace(cell.variant, train_reference(recipe_of(cell, /*alone=*/true, folder.path())));
    }
    EXPECT_EQ(train_and_compare(recipe_of(cell, /*alone=*/false, folder.path()), mesh_of(cell),
                                world().rank() == 0 ? references.at(cell.variant) : Reference()),
              "")
        << cell.describe();
  }
}

/// Returns meshes of all ranks with micro-batches of different sizes, for which one rank has the same.
std::vector<Cell> balanced_cells(const char* balance) {
  const int64_t n = world().size();
  const Variant packed = mixture_of("mixtral", "packed", "sgd"), one = mixture_of("qwen3_moe", "one", "adamw");
  std::vector<Cell> all = {{one, n, 1, 1, "none", "contiguous", false, 2, "full_shard", "full", "sublayer"},
                           {packed, 1, n, 1, "none", "contiguous", false, 2, "no_shard", "none"},
                           {packed, 1, n, 1, "none", "contiguous", true, 16, "no_shard", "alternate"},
                           {packed, 1, n, 1, "none", "contiguous", true, 2, "no_shard", "full"},
                           {one, 1, 1, n, "ring", "zigzag", false, 2, "full_shard", "full"}};
  all[1].ep = all[3].ep = n;
  if (n == 4) all.push_back({packed, 2, 2, 1, "none", "contiguous", true, 2, "hybrid_shard", "full"});
  if (n == 4) all.push_back({packed, 1, 2, 2, "all_gather", "contiguous", true, 4, "no_shard", "selective"});
  if (n > 1 && balance != std::string("transformers")) {
    all.push_back({packed, 1, 1, 1, "none", "contiguous", false, 2 * n, "no_shard", "full"});
    all.back().variant.layers = n;
    all.back().pp = n;
    all.back().schedule = n == 2 ? "1f1b" : "zb_h1";
  }
  for (Cell& cell : all) {
    cell.variant.balance = balance;
    cell.variant.micro_batch = 16 / (cell.dp * cell.accumulation);
  }
  return all;
}

/// Returns the sums of all ranks' routers in a step, without the z-loss of the logits, which is the last.
std::vector<double> router_sums(const Recipe& recipe, const DeviceMesh& mesh) {
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
  const StepBatch batch = read_step(dataset, recipe.train, mesh, trainer.layout(), 0);
  std::vector<double> sums = trainer.compute_gradients(batch, trainer.count_tokens(batch), {}).read().part_sums;
  if (recipe.train.z_loss > 0) sums.pop_back();
  return sums;
}

class BalancedExperts : public ::testing::TestWithParam<const char*> {};

TEST_P(BalancedExperts, AreThoseOfOneRankOnEveryMesh) {
  if (world().size() == 8) GTEST_SKIP() << "4 ranks have shown it";
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  for (const Cell& cell : balanced_cells(GetParam())) {
    const Recipe alone = recipe_of(cell, /*alone=*/true, folder.path()),
                 recipe = recipe_of(cell, /*alone=*/false, folder.path());
    const Reference reference = world().rank() == 0 ? train_reference(alone) : Reference();
    EXPECT_EQ(train_and_compare(recipe, mesh_of(cell), reference), "") << cell.describe();

    const std::vector<double> wanted = router_sums(alone, one_rank_mesh()), sums = router_sums(recipe, mesh_of(cell));
    ASSERT_EQ(sums.size(), wanted.size());
    EXPECT_GT(wanted[0], 0);
    EXPECT_GT(wanted[1], 0);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(sums[i], wanted[i], 1e-12 * wanted[i]) << cell.describe();
    EXPECT_TRUE(std::equal(sums.begin() + 2, sums.end(), wanted.begin() + 2)) << "counts: " << cell.describe();
  }
}

TEST(Capacity, DropsTheSameRowsOnEveryMesh) {
  if (world().size() == 1 || world().size() == 8) GTEST_SKIP() << "2 and 4 ranks show it";
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const std::vector<Cell> all = balanced_cells("micro_batch");
  for (const Cell& cell : {all[1], all[3], all[4], all.back()}) {
    Recipe alone = recipe_of(cell, /*alone=*/true, folder.path()),
           recipe = recipe_of(cell, /*alone=*/false, folder.path());
    alone.train.experts->capacity_factor = recipe.train.experts->capacity_factor = 0.75;
    const Reference reference = world().rank() == 0 ? train_reference(alone) : Reference();
    EXPECT_EQ(train_and_compare(recipe, mesh_of(cell), reference), "") << cell.describe();
    const std::vector<double> wanted = router_sums(alone, one_rank_mesh()), sums = router_sums(recipe, mesh_of(cell));
    EXPECT_GT(wanted[2], 0) << "dropped";
    EXPECT_TRUE(std::equal(sums.begin() + 2, sums.end(), wanted.begin() + 2)) << cell.describe();
  }
}

INSTANTIATE_TEST_SUITE_P(All, BalancedExperts, ::testing::Values("sequence", "micro_batch", "transformers"));

/// Returns the movements of all selection biases in a training on one rank, by name.
std::map<std::string, at::Tensor> biases_of(const Trace& trace) {
  std::map<std::string, at::Tensor> biases;
  for (const TracedParameter& parameter : trace.parameters) {
    if (parameter.name.ends_with("e_score_correction_bias") && parameter.held()) {
      biases[parameter.name] = parameter.movement;
    }
  }
  return biases;
}

TEST(SelectionBias, HasTheSameBitsOnEveryMesh) {
  if (world().size() == 8) GTEST_SKIP() << "4 ranks have shown it";
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const int64_t n = world().size();
  const Variant variant = mixture_of("dots1", "packed", "adamw");
  std::vector<Cell> cells;
  if (n < 4 || is_full_run()) {
    cells = {{variant, n, 1, 1, "none", "contiguous", false, 2, "full_shard", "full"},
             {variant, n, 1, 1, "none", "contiguous", false, 1, "shard_optimizer", "none"},
             {variant, 1, n, 1, "none", "contiguous", false, 2, "no_shard", "none"},
             {variant, 1, n, 1, "none", "contiguous", true, 2, "no_shard", "full"},
             {variant, 1, 1, n, "ring", "zigzag", false, 1, "full_shard", "selective"}};
  }
  if (n == 4) cells.push_back({variant, 2, 2, 1, "none", "contiguous", true, 2, "hybrid_shard", "full"});
  if (n > 1) cells.push_back({variant, 1, 1, 1, "none", "contiguous", false, n, "no_shard", "none"});
  if (n > 1) cells.back().pp = n, cells.back().variant.layers = n;
  for (const Cell& cell : cells) {
    const auto biases = [&](bool alone, const DeviceMesh& mesh) {
      Recipe recipe = recipe_of(cell, alone, folder.path());
      recipe.train.steps = cell.sequence_parallel && n == 2 ? 100 : 12;
      recipe.model.shape.experts.num_experts = 48;  // shards cut a bias
      recipe.train.experts = BalancingOptions{.bias_update = 0.01};
      return biases_of(train(recipe, mesh));
    };
    const std::map<std::string, at::Tensor> wanted = biases(/*alone=*/true, one_rank_mesh());
    EXPECT_EQ(wanted.size(), static_cast<size_t>(cell.variant.layers - 1)) << "the first layer has no experts";
    for (const auto& [name, movement] : biases(/*alone=*/false, mesh_of(cell))) {
      EXPECT_GT(movement.abs().max().item<double>(), 0.02);
      EXPECT_TRUE(at::equal(movement, wanted.at(name))) << name << " " << cell.describe();
    }
  }
}

TEST(SelectionBias, StaysInASkippedStep) {
  if (world().size() > 1) GTEST_SKIP() << "arithmetic of one rank";
  const ScratchFolder folder(world());
  write_tokens(folder.path());
  Cell cell{mixture_of("glm4_moe", "one", "sgd"), 1, 1, 1, "none", "contiguous", false, 2};
  cell.variant.precision = "fp16_mixed";
  for (const bool overflows : {false, true}) {
    Recipe recipe = recipe_of(cell, /*alone=*/true, folder.path());
    recipe.train.steps = 1;
    recipe.train.loss_scale.emplace().fixed = overflows ? 1e30 : 1;
    recipe.train.experts = BalancingOptions{.bias_update = 0.01};
    const auto biases = biases_of(train(recipe, one_rank_mesh()));
    EXPECT_FALSE(biases.empty());
    for (const auto& [name, movement] : biases) {
      EXPECT_EQ(movement.abs().max().item<double>() > 0, !overflows) << name;
      EXPECT_EQ(movement.scalar_type(), at::kFloat) << name;
    }
  }
}

TEST(Balancing, IsScaledAsTheLoss) {
  if (world().size() > 1) GTEST_SKIP() << "arithmetic of one rank";
  const ScratchFolder folder(world());
  write_tokens(folder.path());
  Cell cell{mixture_of("mixtral", "one", "sgd"), 1, 1, 1, "none", "contiguous", false, 2};
  cell.variant.precision = "fp16_mixed";
  cell.variant.balance = "sequence";
  const auto gradient_of_router = [&](double scale) {
    Recipe recipe = recipe_of(cell, /*alone=*/true, folder.path());
    recipe.train.steps = 1;
    recipe.train.loss_scale.emplace().fixed = scale;
    recipe.train.experts->coefficient = 100;  // most of the router's gradient
    for (const TracedParameter& parameter : train(recipe, one_rank_mesh()).parameters) {
      if (parameter.name == "model.layers.0.mlp.gate.weight") return parameter.gradient;
    }
    return at::Tensor();
  };
  EXPECT_LE(relative_error(gradient_of_router(16), gradient_of_router(1)), 0.01);
}

TEST(Balancing, LeavesTheLossAlone) {
  if (world().size() > 1) GTEST_SKIP() << "arithmetic of one rank";
  const ScratchFolder folder(world());
  write_tokens(folder.path());
  Cell cell{mixture_of("mixtral", "one", "sgd"), 1, 1, 1, "none", "contiguous", false, 2};
  const Trace plain = train(recipe_of(cell, /*alone=*/true, folder.path()), one_rank_mesh());
  cell.variant.balance = "sequence";
  const Trace balanced = train(recipe_of(cell, /*alone=*/true, folder.path()), one_rank_mesh());
  EXPECT_EQ(balanced.losses.front(), plain.losses.front());
  EXPECT_NE(balanced.losses.back(), plain.losses.back()) << "its gradient moves the weights";
}

INSTANTIATE_TEST_SUITE_P(All, Experts,
                         ::testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe",
                                           "granitemoeshared", "dots1", "glm4_moe", "gpt_oss"));

}  // namespace
}  // namespace meshtrain::testing
