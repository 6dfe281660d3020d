// The real trainer makes steps on the Meta device, as one rank of a world that does not exist.

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "mesh/forwarding.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/support/small_model.h"

namespace meshtrain {
namespace {

Group dry_world(int rank, int size) {
  std::vector<int64_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return Group(dry_run_backend(rank, size), "world", ranks, "rank " + std::to_string(rank));
}

/// Returns options for 8 layers of Llama-3-8B in bf16, with ring attention and sequence parallel. `mode`: a value of
/// parallel.fsdp.mode; shards are cut over dp x cp.
TrainingOptions large_model(const MeshLayout& layout, const std::string& mode = "no_shard") {
  TrainingOptions options = testing::small_model();
  ModelShape& shape = options.shape;
  shape.hidden_size = 4096;
  shape.intermediate_size = 14336;
  shape.num_hidden_layers = 8;
  shape.num_attention_heads = 32;
  shape.num_key_value_heads = 8;
  shape.head_dim = 128;
  shape.vocab_size = 128256;
  options.batch = {.sequence_length = 8192, .global_batch = 2 * layout.size(kDataAxis), .micro_batch = 1};
  options.precision = testing::precision_in(at::kBFloat16);
  options.sequence_parallel = true;
  options.context = {ContextAlgorithm::Ring, SequenceLayout::Kind::ZigZag};
  if (mode == "no_shard") {
    options.sharding.num_ranks = layout.size(kDataAxis);
  } else {
    options.sharding = {ShardingMode::FullShard,
                        {kDataAxis, kContextAxis},
                        layout.size(kDataAxis) * layout.size(kContextAxis),
                        mode == "hybrid_shard",
                        8};
  }
  return options;
}

/// A backend that counts the groups made of a world.
class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  int splits = 0;

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override {
    ++splits;
    return part;
  }
};

DeviceMesh large_mesh(int rank) {
  return DeviceMesh(MeshLayout({{"dp", 16}, {"cp", 8}, {"tp", 8}}), dry_world(rank, 1024));
}

TEST(DryRun, TrainerStepsOnTheMetaDeviceOver1024Ranks) {
  const int64_t cp = 8, tp = 8, local = 8192 / cp;
  for (int rank : {0, 517, 1023}) {
    const DeviceMesh mesh = large_mesh(rank);
    TransformerTrainer trainer(large_model(mesh.layout()), mesh, at::kMeta);
    ASSERT_EQ(trainer.layout().local_length(), local);
    const StepBatch batch = made_step(trainer.options(), trainer.layout(), 2, at::kMeta);
    mesh.traffic().clear();
    const StepOutcome outcome = trainer.step(batch, trainer.count_tokens(batch), {1e-3});
    EXPECT_EQ(outcome.loss.device().type(), at::kMeta);

    int64_t num_elements = 0, num_buffers = 0;
    for (const Unit& unit : trainer.fsdp().units()) {
      for (const FlatBuffer& buffer : unit.buffers()) num_elements += buffer.numel(), ++num_buffers;
    }
    const Traffic gradients = mesh.traffic().total("dp", "dp.gradients");
    EXPECT_EQ(gradients.calls, num_buffers) << "once a unit and step, whatever the accumulation";
    EXPECT_EQ(gradients.buffer_bytes, num_elements * 2);
    // Tensor parallel with sequence parallel, formulas 4.3: 10 (t-1)/t x for each layer and micro-batch, and for the
    // head a gather of x and a scatter of its gradient.
    const int64_t x = local * 4096 * 2;
    EXPECT_EQ(mesh.traffic().total("tp", "tp.linear").sent_bytes, 2 * (8 * 10 + 2) * x * (tp - 1) / tp);
    // Ring attention: keys and values of one KV head twice, their gradients in fp32 once, in 8 layers and 2
    // micro-batches.
    const int64_t key_values = 2 * local * 128;
    EXPECT_EQ(mesh.traffic().total("cp", "cp.attention").sent_bytes, 2 * 8 * (cp - 1) * key_values * (2 + 2 + 4));
    EXPECT_EQ(mesh.traffic().total("", "vote").calls, 1);
  }
}

// A rank of 16,384 makes as many groups, and as many calls per step, as a rank of 1,024.
TEST(DryRun, SetUpAndStepOfARankDoNotGrowWithTheRanks) {
  for (const char* mode : {"no_shard", "full_shard", "hybrid_shard"}) {
    std::map<int, std::pair<int, int64_t>> found;  // by number of ranks: groups and calls
    for (const int size : {1024, 16384}) {
      const auto counting = std::make_shared<CountingBackend>(dry_run_backend(size / 2 + 5, size));
      const Group world(counting, "world", dry_world(0, size).ranks(), "rank");
      const DeviceMesh mesh(MeshLayout({{"dp", size / 64}, {"cp", 8}, {"tp", 8}}), world);
      TransformerTrainer trainer(large_model(mesh.layout(), mode), mesh, at::kMeta);
      const StepBatch batch = made_step(trainer.options(), trainer.layout(), 2, at::kMeta);
      trainer.step(batch, trainer.count_tokens(batch), {1e-3});
      found[size] = {counting->splits, mesh.traffic().total().calls};
      EXPECT_LE(counting->splits, 8) << mode;
    }
    EXPECT_EQ(found[1024], found[16384]) << mode;
  }
}

// Recomputed blocks communicate again: the forward volumes of all blocks, or of every second, and no others.
TEST(DryRun, RecomputationSendsTheForwardAgain) {
  const int64_t cp = 8, tp = 8, local = 8192 / cp, x = local * 4096 * 2;
  const int64_t key_values = 2 * local * 128 * 2;
  const DeviceMesh mesh = large_mesh(517);
  for (const bool sequence_parallel : {false, true}) {
    for (const auto& [mode, every, again] : {std::tuple{Recompute::Nothing, 1, 0},
                                             {Recompute::Elementwise, 1, 0},
                                             {Recompute::All, 1, 8},
                                             {Recompute::All, 2, 4}}) {
      TrainingOptions options = large_model(mesh.layout());
      options.sequence_parallel = sequence_parallel;
      options.recomputation = {mode, every};
      TransformerTrainer trainer(options, mesh, at::kMeta);
      const StepBatch batch = made_step(trainer.options(), trainer.layout(), 1, at::kMeta);
      mesh.traffic().clear();
      trainer.step(batch, trainer.count_tokens(batch), {1e-3});
      const int64_t layers = 8 * (sequence_parallel ? 10 : 8) + again * 4 + 2;
      EXPECT_EQ(mesh.traffic().total("tp", "tp.linear").sent_bytes, layers * x * (tp - 1) / tp) << again << every;
      EXPECT_EQ(mesh.traffic().total("cp", "cp.attention").sent_bytes, (8 * 4 + again) * (cp - 1) * key_values)
          << again << every;
    }
  }
}

TEST(DryRun, TrainerStepsWithFrozenParametersAndMuon) {
  for (const char* mode : {"no_shard", "full_shard"}) {
    for (int rank : {0, 517, 1023}) {
      const DeviceMesh mesh = large_mesh(rank);
      TrainingOptions options = large_model(mesh.layout(), mode);
      options.optimizer.name = "muon";
      options.units.layers = 3;
      options.freeze = {"*embed*", "model.layers.[0-3].*", "*.k_proj.*"};
      TransformerTrainer trainer(options, mesh, at::kMeta);
      EXPECT_EQ(trainer.fsdp().units().size(), 1 + 3 + 1u);
      const StepBatch batch = made_step(trainer.options(), trainer.layout(), 2, at::kMeta);
      mesh.traffic().clear();
      const StepOutcome outcome =
          trainer.step(batch, trainer.count_tokens(batch), {.learning_rate = 1e-3, .measure = true});
      EXPECT_EQ(outcome.parameters.sizes(), (at::IntArrayRef{4 * 8 + 2, 3}));
      // Four layers have six matrices each on 1,024 ranks: one round gathers all of them and sends them back.
      EXPECT_EQ(mesh.traffic().entries().at({"world", "optimizer", Collective::Kind::AllToAll}).calls, 2);
      const Traffic pieces = mesh.traffic().total("dp_cp", "optimizer");
      const int64_t numel = (2 * 4096 + 1024) * 4096 + 3 * 4096 * 14336;
      EXPECT_EQ(pieces.buffer_bytes, mode == std::string("no_shard") ? 4 * numel / 8 * 4 : 0);
    }
  }
}

TEST(DryRun, TrainerStepsWithDocuments) {
  for (int rank : {0, 517, 1023}) {
    const DeviceMesh mesh = large_mesh(rank);
    TrainingOptions options = large_model(mesh.layout());
    options.shape.num_hidden_layers = 2;
    options.batch.micro_batch = 2;
    options.has_documents = true;
    TransformerTrainer trainer(options, mesh, at::kMeta);
    StepBatch batch = made_step(trainer.options(), trainer.layout(), 2, at::kMeta);
    for (MicroBatch& micro_batch : batch.micro_batches) micro_batch.documents = {{1, 2, 700, 4096, 8191}, {}};
    const StepOutcome outcome = trainer.step(batch, trainer.count_tokens(batch), {1e-3});
    EXPECT_EQ(outcome.loss.device().type(), at::kMeta);
    EXPECT_EQ(outcome.grad_norm.device().type(), at::kMeta);
    EXPECT_EQ(mesh.traffic().total("", "vote").calls, 1);
  }
}

}  // namespace
}  // namespace meshtrain
