// Units of sublayers compute the same bits as units of blocks. Their memory and traffic follow the formulas for units.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/transformer/data_parallel.h"
#include "runtime/training/transformer/parallelize.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/hosts.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

DeviceMesh mesh_on(const Cell& cell, Hosts hosts) {
  return DeviceMesh(MeshLayout({{"dp", cell.dp}, {"cp", cell.cp}, {"tp", cell.tp}}), world_on(hosts));
}

Variant variant(const char* family, const char* precision, const char* frozen = "none",
                const char* optimizer = "adamw-unclipped") {
  const bool tied = std::string(family) == "qwen3" || std::string(family) == "gemma2";
  return {family, tied, "gqa", "uneven", "packed", precision, optimizer, frozen};
}

/// Returns, on one rank, each placement of norms, a residual multiplier, norms of queries and keys, frozen parts and
/// each optimizer. On several ranks, each way to cut units over dp, and with 4 ranks also tp with sequence parallel and
/// cp.
std::vector<Cell> sublayer_cells() {
  const int64_t n = world().size();
  std::vector<Cell> all;
  const auto add = [&](const Variant& of, int64_t tp, int64_t cp, const char* sharding) {
    all.push_back(
        {of, n / tp / cp, tp, cp, cp > 1 ? "ring" : "none", cp > 1 ? "zigzag" : "contiguous", tp > 1, 2, sharding});
  };
  if (n == 1) {
    for (const char* family : {"llama", "qwen3", "olmo2"}) add(variant(family, "fp32"), 1, 1, "no_shard");
    for (const char* family : {"granite", "gemma2"}) add(variant(family, "bf16_mixed+"), 1, 1, "no_shard");
    for (const char* frozen : {"bottom", "top", "parts"}) add(variant("qwen3", "fp64", frozen), 1, 1, "no_shard");
    add(variant("qwen2", "fp32", "none", "muon"), 1, 1, "no_shard");
    return all;
  }
  for (const char* sharding : {"no_shard", "shard_optimizer", "shard_grad_op", "shard_grad_op+", "full_shard",
                               "full_shard+", "hybrid_shard", "hybrid_shard+"}) {
    const bool first = all.size() % 2 == 0;
    add(first ? variant("olmo2", "fp32") : variant("qwen3", "bf16_mixed"), 1, 1, sharding);
  }
  add(variant("llama", "fp64", "parts"), 1, 1, "full_shard");
  if (n == 4) add(variant("gemma2", "fp32"), 2, 1, "full_shard");
  if (n == 4) add(variant("qwen2", "fp32"), 1, 2, "full_shard");
  return all;
}

/// Expects gradient norms that are equal up to rounding: each unit sums its squares in fp64, and then these sums are
/// added.
void expect_norms(const Trace& seen, const Trace& wanted, const std::string& of) {
  ASSERT_EQ(seen.grad_norms.size(), wanted.grad_norms.size()) << of;
  for (size_t step = 0; step < wanted.grad_norms.size(); ++step)
    EXPECT_NEAR(seen.grad_norms[step], wanted.grad_norms[step], 1e-14 * wanted.grad_norms[step]) << of;
}

TEST(SublayerUnits, ChangeNoBit) {
  if (world().size() == 8) GTEST_SKIP() << "4 ranks have shown it";
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  std::vector<const char*> recomputes = {"none", "full", "selective", "alternate"};
  for (Cell cell : sublayer_cells()) {
    // Recompute.ChangesNoBit tests that recomputation changes no bit with units of blocks.
    const Trace wanted = train(recipe_of(cell, /*alone=*/false, folder.path()), mesh_on(cell, Hosts::Found));
    cell.unit = "sublayer";
    const auto expect_same = [&](Hosts hosts) {
      Trace seen = train(recipe_of(cell, /*alone=*/false, folder.path()), mesh_on(cell, hosts));
      const std::string of = cell.describe() + " " + name_of(hosts);
      expect_norms(seen, wanted, of);
      seen.grad_norms = wanted.grad_norms;
      EXPECT_EQ(first_difference(seen, wanted), "") << of;
    };
    for (const char* recompute : recomputes) {
      if (world().size() > 1 && recompute == recomputes.back()) continue;  // of the last two, cells take turns
      cell.recompute = recompute;
      expect_same(Hosts::Found);
    }
    std::swap(recomputes[2], recomputes[3]);
    // Without windows full_shard gathers into memory that units take in turns.
    const bool reuses = cell.sharding.starts_with("full_shard") || cell.sharding.starts_with("hybrid_shard");
    for (const char* recompute : {"none", "full"}) {
      cell.recompute = recompute;
      if (reuses) expect_same(Hosts::Refused);
    }
  }
}

/// Returns a recipe of three layers whose parts differ in size, cut over dp.
Recipe uneven_recipe(const std::string& mode, int64_t prefetch, bool tied) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.family = "gemma2";  // four norms in a block
  shape.hidden_size = 64;
  shape.intermediate_size = 208;
  shape.num_hidden_layers = 3;
  shape.num_attention_heads = 4;
  shape.num_key_value_heads = 2;
  shape.head_dim = 16;
  shape.vocab_size = 80;
  shape.tie_word_embeddings = tied;
  recipe.parallel.mesh = {{"dp", world().size()}};
  recipe.parallel.fsdp.mode = mode;
  recipe.parallel.fsdp.unit = "sublayer";
  recipe.parallel.fsdp.options.prefetch = prefetch;
  recipe.train.sequence_length = 32;
  recipe.train.global_batch = 2 * world().size();
  recipe.train.precision = "fp32";
  return recipe;
}

int64_t bytes_of(const Unit& unit) {
  int64_t bytes = 0;
  for (const FlatBuffer& buffer : unit.buffers()) bytes += buffer.numel() * 4;
  return bytes;
}

/// Returns the largest sum of `neighbours` units; a tied unit always has its memory.
int64_t arena(const std::vector<int64_t>& sizes, bool tied, int64_t neighbours) {
  int64_t largest = 0;
  for (size_t first = tied; first < sizes.size(); ++first) {
    const size_t end = std::min(first + static_cast<size_t>(neighbours), sizes.size());
    largest = std::max(largest, std::accumulate(sizes.begin() + first, sizes.begin() + end, int64_t{0}));
  }
  return largest + (tied ? sizes.front() : 0);
}

std::unique_ptr<ShardedModel> model_of(const Recipe& recipe, const DeviceMesh& mesh) {
  const Decisions decisions = resolve(recipe, mesh.layout());
  const ModelFsdp fsdp = fsdp_options(decisions, map_replicas(decisions.sharding, mesh));
  return std::move(parallelize(decisions, fsdp, mesh, at::kCPU, [](const Parameter&) {}).front());
}

TEST(SublayerUnits, AreAttentionAndFeedForwardWithTheirNorms) {
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}, {"cp", 1}, {"tp", 1}}), world());
  const auto model = model_of(uneven_recipe("no_shard", 1, false), mesh);
  const std::vector<Unit>& units = model->fsdp().units();
  ASSERT_EQ(units.size(), 2u * 3 + 2);
  const auto parameters = [&](size_t unit) {
    std::vector<std::string> names;
    for (const Parameter* parameter : units[unit].parameters()) names.push_back(parameter->name);
    return names;
  };
  const std::string block = "model.layers.1.";
  EXPECT_EQ(units[3].name(), "block 1 attention");
  EXPECT_EQ(parameters(3),
            (std::vector<std::string>{block + "input_layernorm.weight", block + "self_attn.q_proj.weight",
                                      block + "self_attn.k_proj.weight", block + "self_attn.v_proj.weight",
                                      block + "self_attn.o_proj.weight", block + "post_attention_layernorm.weight"}));
  EXPECT_EQ(units[4].name(), "block 1 feed-forward");
  EXPECT_EQ(parameters(4),
            (std::vector<std::string>{block + "pre_feedforward_layernorm.weight", block + "mlp.gate_proj.weight",
                                      block + "mlp.up_proj.weight", block + "mlp.down_proj.weight",
                                      block + "post_feedforward_layernorm.weight"}));
}

TEST(SublayerUnits, RefuseToBeOfSeveralBlocks) {
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
  Recipe recipe = uneven_recipe("no_shard", 1, false);
  recipe.parallel.mesh.clear();
  Decisions decisions = resolve(recipe, mesh.layout());
  decisions.units.layers = 2;
  EXPECT_THROW(parallelize(decisions, {}, mesh, at::kCPU, [](const Parameter&) {}), std::invalid_argument);
}

TEST(SublayerUnits, HoldTheBytesOfTheFormulas) {
  const int64_t n = world().size();
  for (const bool tied : {false, true}) {
    for (const char* mode : {"shard_grad_op", "full_shard"}) {
      for (const int64_t prefetch : {0, 1, 2, 3}) {
        SCOPED_TRACE(std::string(mode) + " prefetch " + std::to_string(prefetch) + (tied ? " tied" : ""));
        Recipe recipe = uneven_recipe(mode, prefetch, tied);
        const DeviceMesh mesh(MeshLayout({{"dp", n}, {"cp", 1}, {"tp", 1}}), world_on(Hosts::Refused));
        const int64_t before = HostMemory::counted().live();
        const auto model = model_of(recipe, mesh);
        const int64_t taken = HostMemory::counted().live() - before;
        std::vector<int64_t> sizes;
        for (const Unit& unit : model->fsdp().units()) sizes.push_back(bytes_of(unit));
        const int64_t all = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
        if (n == 1) {
          EXPECT_EQ(taken, 2 * all);
          continue;
        }
        const UnitMemory& memory = model->fsdp().memory();
        const bool full = mode == std::string("full_shard");
        // Attention and feed-forward in turn need one neighbour more for an even number ahead (offsets.h).
        const int64_t window = prefetch == 2 ? 4 : 1 + prefetch;
        const int64_t parameters = full ? arena(sizes, tied, window) : all;
        EXPECT_EQ(memory.parameters.bytes(), parameters);
        EXPECT_EQ(memory.gradients.bytes(), arena(sizes, tied, 2));
        EXPECT_EQ(taken, parameters + arena(sizes, tied, 2) + (full ? 2 : 1) * all / n);

        recipe.parallel.fsdp.unit = "block";
        const auto blocks = model_of(recipe, mesh);
        EXPECT_LT(memory.gradients.bytes(), blocks->fsdp().memory().gradients.bytes());
        if (full) {
          EXPECT_LT(memory.parameters.bytes(), blocks->fsdp().memory().parameters.bytes());
        }
      }
    }
  }
}

TEST(SublayerUnits, SendTheBytesOfTheFormulas) {
  const int64_t n = world().size();
  if (n == 1) GTEST_SKIP() << "one rank sends nothing";
  constexpr int64_t kMicroBatches = 2;
  for (const char* recompute : {"none", "full"}) {
    Recipe recipe = uneven_recipe("full_shard", 1, false);
    recipe.train.activation_checkpointing = {recompute, 1};
    const DeviceMesh mesh(MeshLayout({{"dp", n}, {"cp", 1}, {"tp", 1}}), world_on(Hosts::Refused));
    TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
    const StepBatch batch = made_step(trainer.options(), trainer.layout(), kMicroBatches, at::kCPU);
    trainer.step(batch, trainer.count_tokens(batch), {1e-4});
    mesh.traffic().clear();
    trainer.step(batch, trainer.count_tokens(batch), {1e-4});
    int64_t all = 0;
    for (const Unit& unit : trainer.fsdp().units()) all += bytes_of(unit);
    const int64_t last = bytes_of(trainer.fsdp().units().back()), units = 2 * 3 + 2;
    const Traffic parameters = mesh.traffic().total("", "dp.parameters");
    EXPECT_EQ(parameters.calls, kMicroBatches * (2 * units - 1)) << recompute;
    EXPECT_EQ(parameters.sent_bytes, kMicroBatches * (2 * all - last) * (n - 1) / n) << recompute;
    const Traffic gradients = mesh.traffic().total("", "dp.gradients");
    EXPECT_EQ(gradients.calls, kMicroBatches * units) << recompute;
    EXPECT_EQ(gradients.sent_bytes, kMicroBatches * all * (n - 1) / n) << recompute;
  }
}

}  // namespace
}  // namespace meshtrain::testing
