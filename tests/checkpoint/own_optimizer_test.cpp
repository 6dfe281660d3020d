// An optimizer that this program registers gives the same result on every mesh and in every mode, also after a resume.

#include <gtest/gtest.h>

#include <fstream>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/program/forecast/simulation.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/run/preflight.h"
#include "runtime/program/run/preparation.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/optimizer/box_optimizer.h"
#include "tests/checkpoint/training.h"
#include "tests/matrix/cell.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// Adagrad with decoupled weight decay. Duchi, Hazan and Singer, 2011.
class Adagrad final : public BoxOptimizer {
 public:
  Adagrad(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups)
      : BoxOptimizer(options, groups, {"sum_of_squares"}), eps_(options.eps) {}

 protected:
  void update_box(const ParameterBox& box, double learning_rate) override {
    EXPECT_EQ(box.values.sizes(), at::IntArrayRef(box.box.size)) << box.name;
    EXPECT_EQ(box.global_shape.size(), box.box.start.size()) << box.name;
    const double rate = learning_rate * box.rule.rate;
    at::Tensor values = box.values, sum = box.state.at(0);
    sum.addcmul_(box.gradients, box.gradients);
    values.mul_(1 - rate * box.rule.weight_decay);
    values.addcdiv_(box.gradients, sum.sqrt().add_(eps_), -rate);
  }

 private:
  double eps_;
};

/// Momentum for complete shards, which updates them in place and pages no state.
class PlainMomentum final : public Optimizer {
 public:
  PlainMomentum(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups) : Optimizer(groups) {
    for (const FlatBuffer* buffer : trainable_buffers(groups)) {
      const at::Tensor& values = buffer->shard_values();
      parts_.push_back({"momentum", buffer, {0, values.numel()}, zero_state(options, groups.front(), values)});
    }
  }
  std::vector<ShardTensor> state() const override { return parts_; }

 protected:
  void update(const UpdateInputs&) override {}

 private:
  std::vector<ShardTensor> parts_;
};

const bool kRegistered = [] {
  const auto plain = [](const auto& options, const auto& groups, const auto&) {
    return std::make_unique<PlainMomentum>(options, groups);
  };
  register_optimizer("plain_momentum", plain, {[](const auto&, const auto&) { return 1; }});
  const auto make = [](const auto& options, const auto& groups, const auto&) {
    return std::make_unique<Adagrad>(options, groups);
  };
  register_optimizer("adagrad", make, {[](const auto&, const auto&) { return 1; }});
  return true;
}();

struct MeshOf {
  int64_t dp, tp, cp;
  std::string sharding;
};

std::vector<MeshOf> own_meshes() {
  const int64_t n = world().size();
  if (n == 1) return {{1, 1, 1, "no_shard"}};
  if (n == 2) {
    return {{2, 1, 1, "full_shard"}, {1, 2, 1, "no_shard"}, {2, 1, 1, "shard_optimizer"}, {1, 1, 2, "shard_grad_op"}};
  }
  return {{n / 2, 2, 1, "full_shard"}, {n, 1, 1, "shard_grad_op"}, {n / 2, 1, 2, "hybrid_shard"}};
}

Recipe own_recipe_on(const MeshOf& mesh, bool alone, const std::filesystem::path& folder,
                     const std::string& optimizer = "adagrad") {
  const Variant variant{"llama", false, "mha", "none", "one", "fp64", optimizer, "none", /*groups=*/true};
  return recipe_of(
      {variant, mesh.dp, mesh.tp, mesh.cp, mesh.cp > 1 ? "ring" : "none", "contiguous", mesh.tp > 1, 1, mesh.sharding},
      alone, folder);
}

void expect_near_losses(const std::vector<double>& seen, const std::vector<double>& wanted, const std::string& where) {
  ASSERT_EQ(seen.size(), wanted.size()) << where;
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(seen[i] / wanted[i], 1, 1e-10) << where << " " << i;
}

TEST(OwnOptimizer, GivesOneResultOnEveryMeshAlsoAfterAResume) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  Training alone(own_recipe_on({1, 1, 1, "no_shard"}, /*alone=*/true, folder.path()), Group());
  const std::vector<double> before = alone.run(2), after = alone.run(2);
  const std::vector<MeshOf> all = own_meshes();
  for (size_t i = 0; i < all.size(); ++i) {
    const std::filesystem::path path = folder.path() / std::to_string(i);
    Training training(own_recipe_on(all[i], /*alone=*/false, folder.path()), world());
    expect_near_losses(training.run(2), before, "mesh " + std::to_string(i));
    training.save(path);
    const bool has_state = read_manifest(newest(path)).tensors.contains("model.norm.weight.sum_of_squares");
    EXPECT_TRUE(has_state);
    Training other(own_recipe_on(all[(i + 1) % all.size()], /*alone=*/false, folder.path()), world());
    other.resume(path);
    expect_near_losses(other.run(2), after, "resumed from mesh " + std::to_string(i));
    world().barrier();
  }
}

// The forecast of disk space uses the registry. It must equal the bytes of the tensors in a checkpoint.
TEST(OwnOptimizer, HasItsCheckpointsPlannedAsOursHave) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  if (world().rank() > 0) return;
  for (const char* optimizer : {"adagrad", "adamw", "sgd", "heavy sgd", "muon"}) {
    const std::string name = std::string(optimizer).starts_with("heavy ") ? "sgd" : optimizer;
    Recipe recipe = own_recipe_on({1, 1, 1, "no_shard"}, /*alone=*/true, folder.path(), name);
    if (name != optimizer) recipe.optimizer.momentum = 0.9;
    const std::filesystem::path path = folder.path() / optimizer;
    Training training(recipe, Group());
    training.run(1);
    training.save(path);
    const int64_t bytes = read_manifest(newest(path)).num_bytes();
    const Decisions decisions = resolve(recipe, MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}));
    const std::string line = disk_notice(recipe, decisions, CheckpointFolder(folder.path() / "none"), 0, 1).line;
    EXPECT_NE(line.find(" of " + size_text(bytes) + "; "), std::string::npos) << optimizer << ": " << line;
    EXPECT_EQ(optimizer_traits(name).by_element, name != "muon");
  }
}

// On the Meta device, which stands for a GPU.
TEST(OwnOptimizer, PagesOffloadedStateOnlyAsABoxOptimizer) {
  const ScratchFolder folder;
  write_tokens(folder.path());
  const auto copied = [&](const std::string& optimizer) {
    Recipe recipe = own_recipe_on({1, 1, 1, "no_shard"}, /*alone=*/true, folder.path(), optimizer);
    recipe.parallel.fsdp.offload.to = "host";
    recipe.parallel.fsdp.offload.parameters = false;
    const Decisions decisions = resolve(recipe, MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}));
    const StepForecast step = simulate(decisions, {.gpus = true}, /*rank=*/0, {1}).front();
    EXPECT_EQ(step.offload.to_device, step.offload.to_host);
    return step.offload.to_device;
  };
  EXPECT_GT(copied("adagrad"), 0);
  try {
    copied("plain_momentum");
    ADD_FAILURE() << "state in host memory was updated on the GPU";
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()),
              "optimizer.name: plain_momentum cannot update parameters on the GPU with state that is offloaded: leave "
              "out parallel.fsdp.offload.parameters");
  }
}

TEST(OwnOptimizer, IsRefusedWithTheLocationOfItsName) {
  const ScratchFolder folder;
  std::ofstream(folder.path() / "tokens.bin") << std::string(17 * 8, '\1');
  const std::filesystem::path file = folder.path() / "own.yaml";
  std::ofstream(file) << R"(model: {family: llama, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1,
  num_attention_heads: 4, num_key_value_heads: 4, vocab_size: 64}
data: {tokens: tokens.bin, dtype: uint8}
train: {sequence_length: 16, global_batch: 4, steps: 1}
optimizer:
  name: plain_momentum
  learning_rate: 0.01
parallel: {fsdp: {offload: {to: host, parameters: false}}}
device: cuda
)";
  const Recipe recipe = load_recipe(file, {}, "");
  try {
    const Preparation preparation(recipe, {.run_dir = folder.path() / "run"}, 1);
    ADD_FAILURE() << "state in host memory would be updated on the GPU";
  } catch (const InputError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with(file.string() + ":6:9: optimizer.name: plain_momentum cannot "))
        << error.what();
  }
}

TEST(OwnOptimizer, HasItsNameInRecipes) {
  EXPECT_TRUE(kRegistered);
  EXPECT_THROW(register_optimizer("adamw", {}, {}), std::invalid_argument);
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const Recipe recipe = own_recipe_on({1, 1, 1, "no_shard"}, /*alone=*/true, folder.path());
  std::string yaml = describe_run(recipe, MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}})).recipe;
  EXPECT_EQ(parse_recipe(yaml).optimizer.name, "adagrad");
  yaml.replace(yaml.find("adagrad"), 7, "adagrat");
  try {
    parse_recipe(yaml);
    ADD_FAILURE() << "a name that is not registered was accepted";
  } catch (const InputError& error) {
    for (const char* name : {"adamw", "sgd", "muon", "adagrad"}) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
