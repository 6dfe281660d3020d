// Training in the stages of a pipeline gives the bits of training without one, in every mode of FSDP.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include "mesh/device/aten.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// A pipeline's ranks, and the ranks along the other axes.
struct Shape {
  int64_t pp, dp, cp, tp;
};

struct Mode {
  ShardingMode sharding;
  bool no_sync;
};

struct Staged {
  PipelineChoice pipeline;
  int micro_batches;
};

TrainingOptions options_of(const Shape& shape, const Mode& mode, at::ScalarType dtype) {
  TrainingOptions options = small_model();
  options.shape.num_hidden_layers = 8;
  options.precision = precision_in(dtype, /*mixed=*/dtype == at::kBFloat16);
  options.clip_norm = 0;
  options.sequence_parallel = shape.tp > 1;
  options.sharding = {.mode = mode.sharding, .num_ranks = shape.dp};
  options.fsdp.accumulate_unsharded = mode.no_sync;
  return options;
}

/// Returns pipelines of `pp` ranks with a division of eight blocks that is not even.
std::vector<Staged> pipelines_of(int64_t pp) {
  const auto one = ScheduleKind::OneForwardOneBackward, several = ScheduleKind::Interleaved,
             late = ScheduleKind::ZeroBubble;
  if (pp == 2) return {{{one, {3, 5}}, 3}, {{late, {3, 5}}, 3}, {{several, {2, 1, 3, 2}}, 4}};
  return {{{one, {1, 3, 2, 2}}, 3}, {{late, {1, 3, 2, 2}}, 5}, {{several, {1, 1, 1, 1, 1, 1, 1, 1}}, 8}};
}

/// Returns true when gradients have no memory for a complete step, which weight gradients that are deferred need.
bool reduces_each_micro_batch(const Shape& shape, const Mode& mode) {
  return mode.sharding != ShardingMode::NoShard && !mode.no_sync && shape.dp > 1;
}

/// Makes three steps. Returns this rank's weights, and the losses as "loss of step 0".
Tensors three_steps(TransformerTrainer& trainer, const DeviceMesh& mesh, int micro_batches) {
  Tensors found;
  for (int step = 0; step < 3; ++step) {
    at::manual_seed(100 * step + 10 * mesh.coordinate(kDataAxis) + mesh.coordinate(kContextAxis));
    const StepBatch batch = made_step(trainer.options(), trainer.layout(), micro_batches, at::kCPU);
    const StepOutcome outcome = trainer.step(batch, trainer.count_tokens(batch), {.learning_rate = 1e-3});
    found["loss of step " + std::to_string(step)] = outcome.loss.clone();
  }
  for (const ParameterGroup& group : trainer.groups()) {
    group.fsdp->visit_shards([&](const Parameter& parameter) { found[parameter.name] = parameter.tensor.clone(); });
  }
  return found;
}

/// Returns the shapes of `size` ranks with pipelines of 2 and of 4, and up to 2 ranks along each other axis.
std::vector<Shape> shapes_of(int64_t size) {
  std::vector<Shape> shapes;
  for (const int64_t pp : {2, 4}) {
    for (const int64_t dp : {1, 2}) {
      for (const int64_t cp : {1, 2}) {
        for (const int64_t tp : {1, 2}) {
          if (pp * dp * cp * tp == size) shapes.push_back({pp, dp, cp, tp});
        }
      }
    }
  }
  return shapes;
}

/// Trains with the stages of `pipeline` on `mesh`, and expects the bits of `options` on `stage`, the mesh without them.
void expect_bits(TrainingOptions options, const Staged& staged, const DeviceMesh& mesh, const DeviceMesh& stage,
                 const std::string& what) {
  TransformerTrainer alone(options, stage, at::kCPU);
  const Tensors wanted = three_steps(alone, stage, staged.micro_batches);
  options.pipeline = staged.pipeline;
  TransformerTrainer trainer(options, mesh, at::kCPU);
  const Tensors found = three_steps(trainer, mesh, staged.micro_batches);
  EXPECT_LT(found.size(), wanted.size()) << "a rank has only its stages";
  for (const auto& [name, tensor] : found) {
    EXPECT_TRUE(name.starts_with("loss") ? at::allclose(tensor, wanted.at(name), 1e-14)
                                         : at::equal(tensor, wanted.at(name)))
        << name << ", " << mesh.layout().describe() << ", " << what << ", " << staged.pipeline.blocks.size()
        << " stages, schedule " << static_cast<int>(staged.pipeline.schedule);
  }
}

TEST(Stages, GiveTheBitsOfTheMeshWithoutAPipeline) {
  int num_modes = 0;
  for (const Shape& shape : shapes_of(world().size())) {
    const DeviceMesh mesh(MeshLayout({{"pp", shape.pp}, {"dp", shape.dp}, {"cp", shape.cp}, {"tp", shape.tp}}),
                          world());
    const DeviceMesh stage = mesh.part({"dp", "cp", "tp"});
    for (const Mode& mode : {Mode{ShardingMode::NoShard, false},
                             {ShardingMode::ShardGradOp, false},
                             {ShardingMode::ShardGradOp, true},
                             {ShardingMode::FullShard, false},
                             {ShardingMode::FullShard, true}}) {
      std::vector<Staged> pipelines = pipelines_of(shape.pp);
      if (world().size() > 4) pipelines = {pipelines[static_cast<size_t>(++num_modes % 3)]};  // takes long
      for (const Staged& staged : pipelines) {
        const at::ScalarType dtype = mode.no_sync ? at::kBFloat16 : at::kFloat;
        TrainingOptions options = options_of(shape, mode, dtype);
        if (staged.pipeline.schedule == ScheduleKind::ZeroBubble && reduces_each_micro_batch(shape, mode)) {
          options.pipeline = staged.pipeline;
          EXPECT_THROW(TransformerTrainer(options, mesh, at::kCPU), std::invalid_argument);
          continue;
        }
        expect_bits(options, staged, mesh, stage,
                    "mode " + std::to_string(static_cast<int>(mode.sharding)) + (mode.no_sync ? " with no_sync" : ""));
      }
    }
  }
}

TEST(Stages, GiveTheseBitsWithDeferredWeightGradientsOfAnyModel) {
  if (world().size() > 4) GTEST_SKIP() << "4 ranks have shown it";
  struct Variant {
    std::string name;
    std::function<void(TrainingOptions&)> choose;
  };
  const std::vector<Variant> variants = {
      {"all recomputed", [](TrainingOptions& options) { options.recomputation.what = Recompute::All; }},
      {"norms recomputed", [](TrainingOptions& options) { options.recomputation.what = Recompute::Elementwise; }},
      {"no sequence parallel", [](TrainingOptions& options) { options.sequence_parallel = false; }},
      {"optimizer alone cut", [](TrainingOptions& options) { options.sharding.mode = ShardingMode::ShardOptimizer; }},
      {"biases", [](TrainingOptions& options) { options.shape.qkv_bias = options.shape.output_bias = true; }},
      {"frozen",
       [](TrainingOptions& options) {
         options.freeze = {"model.layers.[0-3].*", "*.k_proj.*"};
       }},
      {"first stages frozen",
       [](TrainingOptions& options) {
         options.freeze = {"model.embed_tokens.*", "model.layers.[0-4].*"};
       }},
      {"adapters",
       [](TrainingOptions& options) {
         options.shape.adapter = {.rank = 4, .dropout = 0.1, .targets = {"all-linear"}, .draws_all = true};
       }},
      {"adapters of some layers, all trained", [](TrainingOptions& options) {
         options.shape.adapter = {.rank = 4, .targets = {"q_proj", "o_proj"}, .train = {"*"}, .draws_all = true};
       }}};
  for (const Shape& shape : shapes_of(world().size())) {
    if (shape.cp > 1) continue;
    const DeviceMesh mesh(MeshLayout({{"pp", shape.pp}, {"dp", shape.dp}, {"cp", shape.cp}, {"tp", shape.tp}}),
                          world());
    const DeviceMesh stage = mesh.part({"dp", "cp", "tp"});
    for (const Variant& variant : variants) {
      TrainingOptions options = options_of(shape, {ShardingMode::FullShard, true}, at::kFloat);
      variant.choose(options);
      expect_bits(options, pipelines_of(shape.pp)[1], mesh, stage, variant.name);
    }
  }
}

// The copy of the embedding is used first by the head, when the last block still has the memory that units share.
TEST(Stages, OfATiedModelHaveTheSameBitsOnDisk) {
  const ScratchFolder folder(world());
  const int64_t size = world().size();
  if (size == 1 || size > 4) GTEST_SKIP() << "for 2 and 4 ranks";
  const DeviceMesh mesh(MeshLayout({{"pp", size}, {"dp", 1}, {"cp", 1}, {"tp", 1}}), world());
  for (const bool even : {true, false}) {
    TrainingOptions options = options_of({size, 1, 1, 1}, {ShardingMode::NoShard, false}, at::kFloat);
    options.shape.tie_word_embeddings = true;
    options.pipeline.blocks.assign(static_cast<size_t>(size), even ? 2 : 1);
    options.pipeline.blocks.front() = 8 - (size - 1) * options.pipeline.blocks.back();
    TransformerTrainer in_memory(options, mesh, at::kCPU);
    const Tensors wanted = three_steps(in_memory, mesh, 1);
    options.sharding.mode = ShardingMode::FullShard;
    options.offload = Offload::Disk;
    options.offload_folder = folder.path();
    TransformerTrainer on_disk(options, mesh, at::kCPU);
    for (const auto& [name, tensor] : three_steps(on_disk, mesh, 1)) {
      EXPECT_TRUE(at::equal(tensor, wanted.at(name))) << name << (even ? ", two blocks" : ", one block");
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
