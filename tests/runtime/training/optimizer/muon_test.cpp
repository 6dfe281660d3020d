#include "runtime/training/optimizer/muon.h"

#include <gtest/gtest.h>

#include "fsdp/unit_memory.h"
#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "runtime/training/optimizer/newton_schulz.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::random_tensor;

/// Computes Keller Jordan's reference by its formulas, for one complete matrix in fp64.
at::Tensor orthogonalised_by_hand(const at::Tensor& g, int64_t steps) {
  at::Tensor x = g / (g.square().sum().sqrt() + 1e-7);
  if (g.size(0) > g.size(1)) x = x.t();
  for (int64_t i = 0; i < steps; ++i) {
    const at::Tensor a = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.mm(a)).mm(x);
  }
  return g.size(0) > g.size(1) ? x.t() : x;
}

TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  for (const auto& [rows, cols] : {std::pair{8, 8}, {5, 12}, {30, 7}, {1, 6}, {6, 1}}) {
    const at::Tensor matrix = random_tensor({rows, cols}, 3) * 100;
    const at::Tensor result = newton_schulz(matrix, 5);
    EXPECT_LT((result - orthogonalised_by_hand(matrix, 5)).abs().max().item<double>(), 1e-12);
    const at::Tensor before = at::linalg_svdvals(matrix), after = at::linalg_svdvals(result);
    for (int64_t i = 0; i < after.numel(); ++i) {
      if (before[i].item<double>() < 0.05 * before.norm().item<double>()) continue;  // five steps are not enough
      EXPECT_GT(after[i].item<double>(), 0.65) << rows << " x " << cols;
      EXPECT_LT(after[i].item<double>(), 1.25) << rows << " x " << cols;
    }
  }
  EXPECT_TRUE(newton_schulz(at::zeros({3, 4}, at::kDouble), 5).eq(0).all().item<bool>());
}

struct Model {
  Model() {
    const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      parameters.push_back(std::make_unique<Parameter>(full_parameter(name, std::move(shape), {}, options)));
    };
    add("embedding", {7, 4});
    parameters[0]->of_tokens = true;
    add("wide", {4, 9});
    add("bias", {9});
    add("tall", {11, 3});
    std::vector<Parameter*> all;
    for (const auto& parameter : parameters) all.push_back(parameter.get());
    fsdp = std::make_unique<Fsdp>(std::vector{UnitSpec{"unit", all}}, FsdpOptions{});
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i]->tensor.detach().copy_(random_tensor(parameters[i]->shape, 1 + i));
    }
  }
  void set_gradients(uint64_t seed) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i]->tensor.mutable_grad().copy_(random_tensor(parameters[i]->shape, 100 * seed + i));
    }
  }

  std::vector<ParameterGroup> groups() const { return {{fsdp.get(), {}}}; }

  std::vector<std::unique_ptr<Parameter>> parameters;
  std::unique_ptr<Fsdp> fsdp;
};

OptimizerOptions muon_options() {
  OptimizerOptions recipe;
  recipe.name = "muon";
  recipe.learning_rate = 0.02;
  recipe.momentum = 0.9;
  recipe.weight_decay = 0.1;
  recipe.muon.adamw_learning_rate = 0.003;
  recipe.groups = {{"wide", 0.5, 0.4}, {"bias", 2, {}}};
  return recipe;
}

TEST(Muon, IsTheFormulaOnWholeMatrices) {
  for (const MuonScale scale : {MuonScale::Original, MuonScale::MatchRmsAdamW}) {
    for (const bool nesterov : {false, true}) {
      for (const int64_t num_steps : {3, 5}) {
        OptimizerOptions recipe = muon_options();
        recipe.muon.scale = scale;
        recipe.muon.nesterov = nesterov;
        recipe.muon.newton_schulz_steps = num_steps;
        Model model;
        std::vector<at::Tensor> wanted, velocity(4);
        for (const auto& parameter : model.parameters) wanted.push_back(parameter->tensor.detach().clone());
        const auto optimizer = make_optimizer(recipe, model.groups());
        for (int step = 1; step <= 3; ++step) {
          model.set_gradients(step);
          for (const size_t i : {1u, 3u}) {
            const at::Tensor g = model.parameters[i]->tensor.grad();
            velocity[i] = velocity[i].defined() ? 0.9 * velocity[i] + g : g.clone();
            const at::Tensor update = orthogonalised_by_hand(nesterov ? g + 0.9 * velocity[i] : velocity[i], num_steps);
            const double rows = static_cast<double>(g.size(0)), cols = static_cast<double>(g.size(1));
            const double factor = scale == MuonScale::Original ? std::sqrt(std::max(1.0, rows / cols))
                                                               : 0.2 * std::sqrt(std::max(rows, cols));
            const double rate = i == 1 ? 0.01 : 0.02, decay = i == 1 ? 0.4 : 0.1;
            wanted[i] = wanted[i] - rate * (decay * wanted[i] + factor * update);
          }
          optimizer->step(0.02);
        }
        for (const size_t i : {1u, 3u}) {
          EXPECT_LT((model.parameters[i]->tensor.detach() - wanted[i]).abs().max().item<double>(), 1e-12)
              << static_cast<int>(scale) << " " << model.parameters[i]->name;
        }
      }
    }
  }
}

// Experts: gate above up of each of three.
TEST(Muon, MovesEachMatrixOfAStackForItself) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
  const int64_t stacked = 6, rows = 4, cols = 7;
  Parameter stack = full_parameter("stack", {3, 2 * rows, cols}, {}, options);
  stack.num_matrices = stacked;
  std::vector<Parameter> matrices;
  for (int64_t i = 0; i < stacked; ++i) {
    matrices.push_back(full_parameter("matrix " + std::to_string(i), {rows, cols}, {}, options));
  }
  std::vector<Parameter*> apart;
  for (Parameter& matrix : matrices) apart.push_back(&matrix);
  Fsdp together({UnitSpec{"unit", {&stack}}}, FsdpOptions{}), others({UnitSpec{"unit", apart}}, FsdpOptions{});
  const auto fill = [&](uint64_t seed, const auto& tensor_of) {
    const at::Tensor values = random_tensor(stack.shape, seed);
    at::Tensor(tensor_of(stack)).copy_(values);
    for (int64_t i = 0; i < stacked; ++i) {
      at::Tensor(tensor_of(matrices[static_cast<size_t>(i)])).copy_(values.view({stacked, rows, cols})[i]);
    }
  };
  fill(1, [](const Parameter& parameter) { return parameter.tensor.detach(); });
  const auto optimizer = make_optimizer(muon_options(), {{&together, {}}});
  const auto other = make_optimizer(muon_options(), {{&others, {}}});
  for (int step = 1; step <= 2; ++step) {
    fill(10 + step, [](const Parameter& parameter) { return parameter.tensor.grad(); });
    optimizer->step(0.02);
    other->step(0.02);
  }
  for (int64_t i = 0; i < stacked; ++i) {
    const at::Tensor moved = stack.tensor.detach().view({stacked, rows, cols})[i];
    EXPECT_TRUE(at::equal(moved, matrices[static_cast<size_t>(i)].tensor.detach())) << i;
  }
}

TEST(Muon, LeavesTheRestToAdamWAtItsOwnRate) {
  Model model, other;
  OptimizerOptions adamw = muon_options();
  adamw.name = "adamw";
  const auto optimizer = make_optimizer(muon_options(), model.groups()), rest = make_optimizer(adamw, other.groups());
  for (int step = 1; step <= 3; ++step) {
    model.set_gradients(step);
    other.set_gradients(step);
    optimizer->step(0.01);  // half of the peak
    rest->step(0.0015);
  }
  for (const size_t i : {0u, 2u}) {
    EXPECT_LT((model.parameters[i]->tensor - other.parameters[i]->tensor).abs().max().item<double>(), 1e-15) << i;
  }
}

TEST(Muon, KeepsOneNumberAnElementAndTheGradients) {
  Model model;
  model.set_gradients(1);
  const at::Tensor before = model.fsdp->units()[0].buffers()[0].gradients().clone();
  const auto optimizer = make_optimizer(muon_options(), model.groups());
  optimizer->step(0.01);
  EXPECT_TRUE(at::equal(model.fsdp->units()[0].buffers()[0].gradients(), before));
}

/// Returns the map for a mesh of num_tp x num_shards x num_replicas that does not exist.
ReplicaMap replicas_of(int64_t num_tp, int64_t num_shards, int64_t num_replicas) {
  return {MeshLayout({{"dp", num_replicas}, {"cp", num_shards}, {"tp", num_tp}}), 0, {"cp"}, num_shards};
}

Group dry_group(int rank, int size) {
  return Group(dry_run_backend(rank, size), "tp", std::vector<int64_t>(static_cast<size_t>(size)), "rank");
}

// A matrix is cut by rows, by columns or not at all over tp, and then at any offset over shards. The owner gets the
// complete matrix, and each rank of its copy gets its own part back.
TEST(CutMatrix, IsWholeOnItsOwnerAndCutAgain) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
  for (const auto& [num_tp, num_shards, num_copies] :
       {std::tuple{1, 1, 1}, {2, 1, 2}, {3, 1, 1}, {1, 4, 1}, {2, 3, 2}, {3, 5, 1}}) {
    for (const int64_t dim : {-1, 0, 1}) {
      const std::vector<int64_t> shape = {8, 10};  // 3 ranks divide neither
      const at::Tensor full = random_tensor(shape, 5);
      const ReplicaMap replicas = replicas_of(num_tp, num_shards, num_copies);
      const int num_ranks = static_cast<int>(replicas.size());
      std::vector<at::Tensor> pieces;  // by rank
      std::vector<CutMatrix> layouts;
      for (int rank = 0; rank < num_ranks; ++rank) {
        const ReplicaMap::Part part = replicas.part_of(rank);
        Parameter first = full_parameter("first", {37}, {}, options);
        Parameter matrix =
            dim < 0 ? full_parameter("m", shape, {}, options)
                    : sharded_parameter("m", shape, dim, dry_group(static_cast<int>(part.tp), num_tp), {}, options);
        std::vector<Unit> units;
        units.emplace_back(UnitSpec{"unit", {&first, &matrix}},
                           Sharding{.num_shards = num_shards, .index = part.shard});
        const UnitMemory memory(units, {});
        const FlatBuffer& buffer = units[0].buffers()[0];
        const Segment segment = buffer.segments().back();
        ASSERT_EQ(segment.parameter, &matrix);
        at::Tensor local = full;
        for (size_t d = 0; d < 2; ++d) {
          local = local.narrow(static_cast<int64_t>(d), matrix.box.start[d], matrix.box.size[d]);
        }
        matrix.valid().detach().copy_(local);
        const Range kept = buffer.in_shard({segment.offset, segment.numel});
        pieces.push_back(buffer.shard_values().narrow(0, kept.offset, kept.numel).clone());
        layouts.emplace_back(buffer, segment, replicas);
        EXPECT_EQ(layouts.back().kept(static_cast<int>(pieces.size()) - 1).numel, kept.numel);
      }
      const CutMatrix& layout = layouts.front();
      for (int owner = 0; owner < num_ranks; ++owner) {
        std::vector<at::Tensor> given, taken;
        for (int rank = 0; rank < num_ranks; ++rank) {
          if (layout.gives(rank, owner)) given.push_back(pieces[static_cast<size_t>(rank)]);
          if (layout.takes(rank, owner)) taken.push_back(pieces[static_cast<size_t>(rank)]);
        }
        EXPECT_TRUE(at::equal(layout.assemble(at::cat(given), owner), full));
        EXPECT_TRUE(at::equal(layout.cut(full, owner), at::cat(taken)));
      }
    }
  }
}

TEST(CutMatrix, OwnersShareTheWork) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kDouble);
  const ReplicaMap replicas = replicas_of(2, 2, 2);
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<CutMatrix> layouts;
  std::vector<std::unique_ptr<FlatBuffer>> buffers;
  for (int layer = 0; layer < 12; ++layer) {
    for (const auto& shape : {std::vector<int64_t>{16, 16}, {4, 16}, {40, 16}, {16, 40}}) {
      parameters.push_back(std::make_unique<Parameter>(full_parameter("m", shape, {}, options)));
      buffers.push_back(
          std::make_unique<FlatBuffer>(std::vector<Parameter*>{parameters.back().get()}, Sharding{.num_shards = 2}));
      layouts.emplace_back(*buffers.back(), buffers.back()->segments()[0], replicas);
    }
  }
  std::vector<double> load(8, 0);
  double total = 0, largest = 0;
  const std::vector<int> owners = choose_owners(layouts, 8);
  for (size_t i = 0; i < layouts.size(); ++i) {
    load[static_cast<size_t>(owners[i])] += layouts[i].work();
    total += layouts[i].work();
    largest = std::max(largest, layouts[i].work());
  }
  EXPECT_LE(*std::max_element(load.begin(), load.end()), total / 8 + largest);
  EXPECT_GE(*std::min_element(load.begin(), load.end()), total / 8 - largest);
}

}  // namespace
}  // namespace meshtrain
