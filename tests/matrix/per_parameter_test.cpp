// Settings of single parameters, on every mesh: frozen ones, Muon's matrices, their metrics, and units of several
// blocks.

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "mesh/base/files/glob.h"
#include "mesh/device/aten.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/data/dataset.h"
#include "runtime/training/optimizer/cut_matrix.h"
#include "runtime/training/optimizer/rules.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

const std::vector<std::string> kModes = {"no_shard",   "shard_optimizer", "shard_grad_op", "shard_grad_op+",
                                         "full_shard", "full_shard+",     "hybrid_shard"};

class PerParameter : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world().size() == 8) GTEST_SKIP() << "4 ranks have shown it";
    if (world().rank() == 0) write_tokens(folder_.path());
    world().barrier();
  }

  /// Returns meshes of all ranks along one axis, and along two.
  static std::vector<std::array<int64_t, 3>> meshes() {
    const int64_t n = world().size();
    if (n == 1) return {{1, 1, 1}};
    std::vector<std::array<int64_t, 3>> all = {{n, 1, 1}, {1, n, 1}, {1, 1, n}};
    if (n == 4) all.insert(all.end(), {{2, 2, 1}, {2, 1, 2}, {1, 2, 2}});
    return all;
  }

  /// Returns those of `modes` that differ on `mesh`: when nothing is cut, each mode is no_shard.
  static std::vector<std::string> modes_on(const std::array<int64_t, 3>& mesh, const std::vector<std::string>& modes) {
    return mesh[0] * mesh[2] > 1 ? modes : std::vector<std::string>{"no_shard"};
  }

  static Cell cell_of(const std::array<int64_t, 3>& mesh, const std::string& sharding, bool tied = false) {
    const auto [dp, tp, cp] = mesh;
    const Variant variant{"qwen2", tied, "mha", "uneven", "one", "fp64", "adamw"};
    return {variant, dp, tp, cp, "all_gather", "contiguous", tp > 1, 2, dp * cp > 1 ? sharding : "no_shard"};
  }
  static DeviceMesh mesh_of(const Cell& cell) {
    return DeviceMesh(MeshLayout({{"dp", cell.dp}, {"cp", cell.cp}, {"tp", cell.tp}}), world());
  }
  Recipe recipe_for(const Cell& cell) const { return recipe_of(cell, /*alone=*/false, folder_.path()); }

  /// Makes the steps of `recipe` on `mesh` and calls `after` with the result of each.
  template <class After>
  void steps(TransformerTrainer& trainer, const Recipe& recipe, const DeviceMesh& mesh, const After& after) const {
    const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
    for (int64_t step = 0; step < recipe.train.steps; ++step) {
      const StepBatch batch = read_step(dataset, recipe.train, mesh, trainer.layout(), step);
      after(trainer.step(batch, trainer.count_tokens(batch),
                         {.learning_rate = recipe.optimizer.learning_rate, .measure = true}));
    }
  }

  const ScratchFolder folder_{world()};
};

std::map<std::string, at::Tensor> weights_of(TransformerTrainer& trainer) {
  std::map<std::string, at::Tensor> weights;
  trainer.fsdp().visit_shards([&](const Parameter& parameter) { weights[parameter.name] = parameter.tensor.clone(); });
  return weights;
}

TEST_F(PerParameter, FrozenOnesStayAsTheyAreAndAreNotSent) {
  for (const auto& sizes : meshes()) {
    for (const std::string& mode : modes_on(sizes, kModes)) {
      for (const char* frozen : {"bottom", "top", "parts"}) {
        Cell cell = cell_of(sizes, mode);
        cell.variant.frozen = frozen;
        const DeviceMesh mesh = mesh_of(cell);
        const Recipe recipe = recipe_for(cell);
        TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
        const std::map<std::string, at::Tensor> before = weights_of(trainer);
        mesh.traffic().clear();
        steps(trainer, recipe, mesh, [](const StepOutcome&) {});

        const ReplicaMap& replicas = trainer.replicas();
        const int64_t times = mode == "shard_grad_op" || mode == "full_shard" || mode == "hybrid_shard" ? 2 : 1;
        int64_t trained = 0, scattered = 0;
        for (const FlatBuffer* buffer : trainable_buffers(trainer.fsdp().units())) trained += buffer->numel();
        if (replicas.shards().size() > 1) scattered = times * trained;
        const int64_t summed = replicas.full_replicas().size() > 1 ? trained : 0;
        int64_t buffers = 0;
        for (const auto& [key, traffic] : mesh.traffic().entries()) {
          if (key.purpose == "dp.gradients" && key.kind == Collective::Kind::ReduceScatter)
            buffers += traffic.buffer_bytes;
          if (key.purpose == "dp.gradients" && key.group == "dp" && key.kind == Collective::Kind::AllReduce) {
            buffers += traffic.buffer_bytes;
          }
        }
        EXPECT_EQ(buffers, recipe.train.steps * 8 * (scattered + summed)) << cell.describe();

        const std::map<std::string, at::Tensor> after = weights_of(trainer);
        for (const Parameter* parameter : trainer.model().parameters()) {
          const bool moved = !at::equal(before.at(parameter->name), after.at(parameter->name));
          EXPECT_EQ(moved, !first_match(recipe.train.freeze, parameter->name))
              << cell.describe() << " " << parameter->name;
          EXPECT_EQ(parameter->tensor.grad().defined(), parameter->tensor.requires_grad()) << parameter->name;
        }
      }
    }
  }
}

// Under mixed precision the shards of frozen parameters are the fp32 values that an fp32 run has, and what layers use
// is these rounded.
TEST_F(PerParameter, FrozenOnesKeepTheirMasters) {
  for (const auto& sizes : meshes()) {
    for (const std::string& mode : modes_on(sizes, {"no_shard", "shard_grad_op", "full_shard"})) {
      for (const char* precision : {"bf16_mixed", "fp16_mixed"}) {
        Cell cell = cell_of(sizes, mode);
        cell.variant.frozen = "parts";
        cell.variant.precision = "fp32";
        const DeviceMesh mesh = mesh_of(cell);
        TransformerTrainer wide(resolve(recipe_for(cell), mesh.layout()), mesh, at::kCPU);
        const std::map<std::string, at::Tensor> masters = weights_of(wide);
        cell.variant.precision = precision;
        const Recipe recipe = recipe_for(cell);
        TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
        steps(trainer, recipe, mesh, [](const StepOutcome&) {});

        const std::map<std::string, at::Tensor> after = weights_of(trainer);
        size_t frozen = 0;
        trainer.fsdp().visit_values([&](const Unit& unit) {
          for (const Parameter* parameter : unit.parameters()) {
            const at::Tensor& master = after.at(parameter->name);
            EXPECT_EQ(master.scalar_type(), at::kFloat) << parameter->name;
            EXPECT_TRUE(at::equal(parameter->tensor.detach(), master.to(parameter->tensor.scalar_type())))
                << cell.describe() << " " << parameter->name;
            if (parameter->tensor.requires_grad()) continue;
            ++frozen;
            EXPECT_TRUE(at::equal(master, masters.at(parameter->name))) << cell.describe() << " " << parameter->name;
          }
        });
        EXPECT_GT(frozen, 0u);
      }
    }
  }
}

// Nothing is computed below the lowest trainable parameter: no collective of tp, no gather for a backward.
TEST_F(PerParameter, NothingGoesBackBelowTheLowestTrainableParameter) {
  if (world().size() == 1) GTEST_SKIP() << "counted by collectives";
  const auto traffic_of = [&](const std::string& frozen, const std::array<int64_t, 3>& sizes,
                              const std::string& recompute, const std::string& purpose) {
    Cell cell = cell_of(sizes, "full_shard");
    cell.variant.frozen = frozen;
    cell.accumulation = 1;
    cell.recompute = recompute;
    const DeviceMesh mesh = mesh_of(cell);
    Recipe recipe = recipe_for(cell);
    recipe.train.steps = 1;
    TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
    mesh.traffic().clear();
    steps(trainer, recipe, mesh, [](const StepOutcome&) {});
    return mesh.traffic().total("", purpose);
  };
  const int64_t n = world().size();
  for (const char* recompute : {"none", "full"}) {
    // Under sequence parallel a block communicates 4 times in the forward, 6 times in the backward, and 4 more times
    // when it is recomputed; the embedding, which has its own purpose, once each.
    const int64_t saved = recompute == std::string("full") ? 10 : 6;
    const Traffic all = traffic_of("none", {1, n, 1}, recompute, "tp.linear");
    const Traffic bottom = traffic_of("bottom", {1, n, 1}, recompute, "tp.linear");
    EXPECT_EQ(all.calls - bottom.calls, saved) << recompute;
    EXPECT_EQ(traffic_of("bottom", {1, n, 1}, recompute, "tp.embedding").calls, 1);
    // Embedding, two blocks and head are all gathered once, and all but the head again for the backward. With a frozen
    // bottom only the second block is.
    EXPECT_EQ(traffic_of("none", {n, 1, 1}, recompute, "dp.parameters").calls, 4 + 3);
    EXPECT_EQ(traffic_of("bottom", {n, 1, 1}, recompute, "dp.parameters").calls, 4 + 1);
  }
}

TEST_F(PerParameter, MetricsAreThoseOfOneRank) {
  for (const auto& sizes : meshes()) {
    for (const std::string& mode : kModes) {
      Cell cell = cell_of(sizes, mode, /*tied=*/mode == "full_shard");
      cell.variant.frozen = mode == "no_shard" ? "parts" : "none";
      cell.variant.optimizer = mode == "full_shard" ? "muon" : "adamw";
      const auto measured = [&](const Recipe& recipe, const DeviceMesh& mesh) {
        TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
        std::vector<ParameterMetrics> last;
        int64_t calls = 0;
        steps(trainer, recipe, mesh, [&](const StepOutcome& outcome) {
          last = trainer.read_parameters(outcome);
          double squares = 0;
          for (const ParameterMetrics& each : last) squares += each.grad_norm * each.grad_norm;
          EXPECT_NEAR(std::sqrt(squares), outcome.grad_norm.item<double>(), 1e-9 * std::sqrt(squares));
          ++calls;
        });
        EXPECT_EQ(mesh.traffic().total("", "parameter_metrics").calls, mesh.size() > 1 ? calls : 0);
        std::map<std::string, ParameterMetrics> by_name;
        for (const ParameterMetrics& each : last) by_name[each.name] = each;
        return by_name;
      };
      const auto wanted = measured(recipe_of(cell, /*alone=*/true, folder_.path()), one_rank_mesh());
      const auto seen = measured(recipe_for(cell), mesh_of(cell));
      ASSERT_EQ(seen.size(), wanted.size());
      for (const auto& [name, one] : wanted) {
        const ParameterMetrics& many = seen.at(name);
        EXPECT_NEAR(many.grad_norm, one.grad_norm, 1e-9 * one.grad_norm) << cell.describe() << " " << name;
        EXPECT_NEAR(many.weight_norm, one.weight_norm, 1e-9 * one.weight_norm) << cell.describe() << " " << name;
        EXPECT_NEAR(many.update_norm, one.update_norm, 1e-8 * one.update_norm) << cell.describe() << " " << name;
        EXPECT_GT(one.update_norm, 0) << name;
      }
    }
  }
}

// The formula of muon.h: pieces to the owner and back, 2 (N - H) w, and broadcasts of R N w when R ranks hold the same.
TEST_F(PerParameter, MuonSendsWhatItsFormulaSays) {
  for (const auto& sizes : meshes()) {
    for (const std::string& mode : kModes) {
      for (const char* precision : {"fp64", "bf16"}) {
        Cell cell = cell_of(sizes, mode);
        cell.variant.optimizer = "muon";
        cell.variant.precision = precision;
        const DeviceMesh mesh = mesh_of(cell);
        Recipe recipe = recipe_for(cell);
        recipe.train.steps = 1;
        TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
        mesh.traffic().clear();
        steps(trainer, recipe, mesh, [](const StepOutcome&) {});

        const ReplicaMap& replicas = trainer.replicas();
        int64_t numel = 0, held = 0;
        std::vector<CutMatrix> matrices;
        for (const FlatBuffer* buffer : trainable_buffers(trainer.fsdp().units())) {
          for (const Segment& segment : buffer->segments()) {
            if (!rule_of(*segment.parameter, recipe.optimizer).full_matrix) continue;
            matrices.emplace_back(*buffer, segment, replicas);
            numel += matrices.back().rows() * matrices.back().cols();
          }
        }
        ASSERT_EQ(matrices.size(), 14u);  // q, k, v, o, gate, up, down of two blocks
        const std::vector<int> owners = choose_owners(matrices, world().size());
        for (size_t i = 0; i < matrices.size(); ++i) held += matrices[i].kept(owners[i]).numel;
        if (cell.dp * cell.cp == 1) {
          EXPECT_EQ(held * cell.tp, numel) << "tp cuts evenly";
        }

        at::Tensor sent = at::zeros({2}, at::kLong);
        for (const auto& [key, traffic] : mesh.traffic().entries()) {
          if (key.purpose != "optimizer") continue;
          const bool pieces = key.kind == Collective::Kind::AllToAll;
          EXPECT_TRUE(pieces || key.kind == Collective::Kind::Broadcast);
          sent[pieces ? 0 : 1].add_(traffic.sent_bytes);
        }
        world().all_reduce(sent).wait();
        const int64_t w = precision == std::string("fp64") ? 8 : 4, copies = replicas.replicas().size();
        EXPECT_EQ(sent[0].item<int64_t>(), 2 * (numel - held) * w) << cell.describe();
        EXPECT_EQ(sent[1].item<int64_t>(), copies == 1 ? 0 : copies * numel * w) << cell.describe();
      }
    }
  }
}

TEST_F(PerParameter, BlocksInOneUnitComputeTheSameWithFewerCollectives) {
  for (const auto& sizes : meshes()) {
    for (const std::string& mode : modes_on(sizes, {"shard_optimizer", "shard_grad_op+", "full_shard"})) {
      Cell cell = cell_of(sizes, mode, /*tied=*/mode == "shard_optimizer");
      const auto recipe_with = [&](int64_t unit_layers) {
        Recipe recipe = recipe_for(cell);
        recipe.model.shape.num_hidden_layers = 5;
        recipe.parallel.fsdp.unit_layers = unit_layers;
        return recipe;
      };
      const Trace wanted = train(recipe_with(1), mesh_of(cell));
      for (const auto& [unit_layers, recompute] :
           {std::pair<int64_t, const char*>{2, "none"}, {2, "full"}, {9, "none"}}) {
        cell.recompute = recompute;
        const Recipe recipe = recipe_with(unit_layers);
        const DeviceMesh mesh = mesh_of(cell);
        const Trace trace = train(recipe, mesh);
        for (size_t i = 0; i < wanted.losses.size(); ++i) {
          EXPECT_NEAR(trace.losses[i], wanted.losses[i], 1e-12 * wanted.losses[i]) << cell.describe();
        }
        ASSERT_EQ(trace.parameters.size(), wanted.parameters.size());
        for (size_t i = 0; i < wanted.parameters.size(); ++i) {
          const TracedParameter &parameter = trace.parameters[i], &expected = wanted.parameters[i];
          ASSERT_EQ(parameter.name, expected.name);
          EXPECT_LT(relative_error(parameter.movement, expected.movement), 1e-10)
              << cell.describe() << " " << parameter.name;
        }
        if (mode != "full_shard" || cell.dp * cell.cp == 1) continue;
        const int64_t units = (5 + unit_layers - 1) / unit_layers + 2;
        int64_t gathers = 0, scatters = 0;
        for (const auto& [key, traffic] : mesh.traffic().entries()) {
          if (key.purpose == "dp.parameters") gathers += traffic.calls;
          if (key.purpose == "dp.gradients") scatters += traffic.calls;
        }
        // In each of two micro-batches for forward and backward, but the last unit only once.
        EXPECT_EQ(gathers, recipe.train.steps * 2 * (2 * units - 1));
        EXPECT_EQ(scatters, recipe.train.steps * 2 * units);
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
