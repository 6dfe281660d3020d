// A forecast is the program: its memory and traffic are those that a step counts.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "mesh/backends/mpi/shared_memory/board.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "mesh/forwarding.h"
#include "runtime/program/forecast/forecast.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/full_run.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// What a rank's step counted.
struct StepCounts {
  int64_t memory = 0;    ///< at the peak; 0 when no step was finite
  int64_t exchange = 0;  ///< of all groups, the world's included
  std::map<TrafficLedger::Key, Traffic> traffic;
};

/// Trains some steps on the CPU. The peak is the largest of a few: the communication thread decides how long tensors of
/// a collective are held.
StepCounts count_step(const Recipe& recipe, const DeviceMesh& mesh, int64_t num_micro_batches) {
  HostMemory& memory = HostMemory::counted();
  const WindowMemory& windows = WindowMemory::counted();
  world().barrier();  // the communication thread may hold tensors of the collective before, until it starts another
  const int64_t live = memory.live(), own = windows.own(), common = windows.common();
  StepCounts counted;
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  const StepBatch batch = made_step(trainer.options(), trainer.layout(), num_micro_batches, at::kCPU);
  const int64_t num_counted = trainer.count_tokens(batch);
  trainer.step(batch, num_counted, {1e-4});
  for (int i = 0, finite = 0; i < 30 && finite < 3; ++i) {
    mesh.traffic().clear();
    memory.restart_peak();
    const StepOutcome outcome = trainer.step(batch, num_counted, {1e-4});
    if (outcome.non_finite.item<bool>()) continue;  // the loss scale is still too large, and nothing is updated
    ++finite;
    counted.memory = std::max(counted.memory, memory.peak());
  }
  if (counted.memory == 0) return counted;
  counted.memory += windows.own() - own + (windows.common() - common) / world().size() - live;
  counted.exchange = windows.exchange();
  counted.traffic = mesh.traffic().entries();
  return counted;
}

/// Returns the cells of a run; MESHTRAIN_COVER_SEED draws others.
std::vector<Cell> cells_to_count() {
  if (is_full_run()) return all_cells(world().size());
  const char* const seed = std::getenv("MESHTRAIN_COVER_SEED");
  return pairwise_cover(all_cells(world().size()), seed ? std::strtoull(seed, nullptr, 10) : 0);
}

/// Expects that the forecast has the memory of `counted`, but for exchange, and its traffic.
void expect_forecast(const StepForecast& step, const StepCounts& counted, const std::string& cell) {
  for (const auto& [key, traffic] : step.traffic) {
    EXPECT_TRUE(counted.traffic.contains(key)) << cell << " " << key.group << " " << key.purpose;
  }
  for (const auto& [key, traffic] : counted.traffic) {
    const auto found = step.traffic.find(key);
    ASSERT_NE(found, step.traffic.end()) << cell << " " << key.group << " " << key.purpose;
    EXPECT_EQ(found->second.calls, traffic.calls) << cell << " " << key.group << " " << key.purpose;
    EXPECT_EQ(found->second.sent_bytes, traffic.sent_bytes) << cell << " " << key.group << " " << key.purpose;
  }
}

TEST(Forecast, IsWhatAStepHoldsAndSends) {
  constexpr double kTolerance = 0.01;
  constexpr int64_t kInFlight = 16 << 10;  // tensors of collectives that ended before the rank waited for them
  const ScratchFolder folder;
  write_tokens(folder.path());
  // The exchange memory of groups that other tests keep.
  const int64_t others = WindowMemory::counted().exchange() - (world().size() > 1 ? HostBoard::kRankBytes : 0);
  double worst = 0;
  std::string worst_cell;
  int num_cells = 0, num_exact = 0;
  for (const Cell& cell : cells_to_count()) {
    // A forecast is of one document, and of experts with equal numbers of rows, which decide what ranks of ep hold.
    if (cell.variant.documents != "one" || cell.ep > 1) continue;
    const Recipe recipe = recipe_of(cell, false, folder.path());
    const DeviceMesh mesh = mesh_of(cell);
    const StepCounts counted = count_step(recipe, mesh, cell.accumulation);
    if (counted.memory == 0) continue;
    const Decisions decisions = resolve(recipe, mesh.layout());
    const StepForecast step = simulate(decisions, {world().size(), false}, world().rank(), {cell.accumulation}).front();
    const StepMemory& memory = step.memory();
    EXPECT_EQ(memory.exchange, counted.exchange - others) << cell.describe();
    const int64_t forecast = memory.total() - memory.exchange;
    const double error = static_cast<double>(forecast - counted.memory) / static_cast<double>(counted.memory);
    const std::string numbers =
        ": forecast " + std::to_string(forecast) + ", counted " + std::to_string(counted.memory);
    EXPECT_GE(error, -kTolerance) << cell.describe() << numbers;
    EXPECT_LE(forecast, (1 + kTolerance) * static_cast<double>(counted.memory) + kInFlight)
        << cell.describe() << numbers;
    if (std::abs(error) >= std::abs(worst)) worst = error, worst_cell = cell.describe();
    ++num_cells;
    num_exact += std::abs(forecast - counted.memory) <= 64;
    expect_forecast(step, counted, cell.describe());
  }
  if (world().rank() == 0) {
    std::printf("  memory of %d cells: %d within 64 bytes, worst %+.3f %%: %s\n", num_cells, num_exact, 100 * worst,
                worst_cell.c_str());
  }
  EXPECT_GT(num_cells, 5);
}

// Every token has all experts, so that each has as many rows as forecasts take.
TEST(Forecast, IsWhatAStepOfExpertsHoldsAndSends) {
  const int64_t n = world().size();
  if (n == 1) GTEST_SKIP() << "one rank has nobody to send rows to";
  const ScratchFolder folder;
  write_tokens(folder.path());
  const Variant variant{"qwen2_moe", false, "mha", "none", "one", "fp64", "adamw"};
  std::vector<Cell> cells = {
      {variant, n, 1, 1, "none", "contiguous", false, 1, "full_shard", "none"},
      {variant, n, 1, 1, "none", "contiguous", false, 2, "shard_grad_op", "full"},
      {variant, 1, n, 1, "none", "contiguous", true, 1, "no_shard", "selective"},
      {variant, 1, n, 1, "none", "contiguous", false, 1, "no_shard", "none"},
      {variant, n / 2, 1, 2, "all_gather", "contiguous", false, 1, "full_shard", "none", "sublayer"}};
  for (Cell& cell : cells) cell.ep = n;
  if (n > 2) cells[0].ep = cells[4].ep = 2;
  for (const Cell& cell : cells) {
    Recipe recipe = recipe_of(cell, false, folder.path());
    recipe.model.shape.experts.num_experts_per_tok = recipe.model.shape.experts.num_experts;
    const DeviceMesh mesh = mesh_of(cell);
    const StepCounts counted = count_step(recipe, mesh, cell.accumulation);
    const Decisions decisions = resolve(recipe, mesh.layout());
    const StepForecast step = simulate(decisions, {n, false}, world().rank(), {cell.accumulation}).front();
    const int64_t forecast = step.memory().total() - step.memory().exchange;
    EXPECT_NEAR(static_cast<double>(forecast), static_cast<double>(counted.memory),
                0.01 * static_cast<double>(forecast))
        << cell.describe();
    expect_forecast(step, counted, cell.describe());
  }
}

/// A pipeline of the recipe's layers.
struct LayersOfStages {
  std::string schedule;
  std::vector<int64_t> layers;  ///< of each stage
  int64_t micro_batches;
};

/// Returns pipelines of `pp` ranks with seven or eight layers.
std::vector<LayersOfStages> divisions_of(int64_t pp) {
  if (pp == 2) return {{"1f1b", {3, 4}, 5}, {"interleaved", {2, 1, 3, 1}, 6}};
  return {{"1f1b", {1, 3, 2, 1}, 7}, {"interleaved", {1, 1, 1, 1, 1, 1, 1, 1}, 8}};
}

Recipe staged_recipe(const MeshLayout& layout, const LayersOfStages& staged) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 64;
  shape.intermediate_size = 96;
  shape.num_hidden_layers = std::accumulate(staged.layers.begin(), staged.layers.end(), int64_t{0});
  shape.num_attention_heads = 8;
  shape.num_key_value_heads = 4;
  shape.head_dim = 8;
  shape.vocab_size = 128;
  recipe.parallel.pipeline = {.schedule = staged.schedule,
                              .stages_per_rank = static_cast<int64_t>(staged.layers.size()) / layout.size("pp"),
                              .layers = staged.layers};
  recipe.train.sequence_length = 32;
  recipe.train.micro_batch = 1;
  recipe.train.global_batch = staged.micro_batches * layout.size("dp");
  recipe.optimizer.name = "adamw";
  return recipe;
}

/// Returns the bytes that a rank sends over links: for each micro-batch, each stage's output and its input's gradient.
int64_t sent_over_links(const Decisions& decisions, int64_t pipeline_rank, int64_t micro_batches) {
  const MeshLayout& layout = decisions.layout;
  int64_t tokens = decisions.batch.micro_batch * decisions.batch.sequence_length / layout.size("cp");
  if (decisions.sequence_parallel) tokens /= layout.size("tp");
  const auto element = static_cast<int64_t>(c10::elementSize(decisions.precision.residual));
  const auto stages = static_cast<int64_t>(decisions.pipeline.blocks.size());
  int64_t messages = 0;
  for (int64_t stage = pipeline_rank; stage < stages; stage += layout.size("pp")) {
    messages += (stage + 1 < stages ? 1 : 0) + (stage > 0 ? 1 : 0);
  }
  return micro_batches * messages * tokens * decisions.shape.hidden_size * element;
}

/// A backend on which a message has arrived when its sender goes on. Else the communication thread decides how long the
/// sender keeps it.
class ArrivedMessages final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work issue(const Collective& collective) override {
    Work work = ForwardingBackend::issue(collective);
    if (collective.kind == Collective::Kind::Message && collective.from == rank()) work.wait();
    return work;
  }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override {
    return std::make_shared<ArrivedMessages>(std::move(part));
  }
};

struct StagedMode {
  std::string fsdp, recompute;
  bool tied;
};

TEST(Forecast, OfStagesIsWhatEachRankHoldsAndSends) {
  const int64_t size = world().size();
  if (size != 2 && size != 4) GTEST_SKIP() << "on 2 and on 4 ranks";
  const int64_t others = WindowMemory::counted().exchange() - HostBoard::kRankBytes;
  std::vector<MeshLayout> layouts = {MeshLayout({{"pp", size}, {"dp", 1}, {"cp", 1}, {"tp", 1}})};
  if (size == 4) {
    for (const char* axis : {"dp", "cp", "tp"}) {
      layouts.push_back(MeshLayout::fit({{"pp", 2}, {axis, 2}}, training_axes(), size));
    }
  }
  for (const MeshLayout& layout : layouts) {
    std::vector<int64_t> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    const DeviceMesh mesh(layout, Group(std::make_shared<ArrivedMessages>(world().backend()), "world", ranks, "rank"));
    for (const LayersOfStages& staged : divisions_of(layout.size("pp"))) {
      for (const StagedMode& mode : {StagedMode{"no_shard", "none", true},
                                     {"shard_optimizer", "full", false},
                                     {"shard_grad_op", "selective", true},
                                     {"full_shard", "none", false},
                                     {"full_shard", "full", true}}) {
        SCOPED_TRACE(layout.describe() + " " + staged.schedule + " " + mode.fsdp + " " + mode.recompute);
        Recipe recipe = staged_recipe(layout, staged);
        recipe.parallel.fsdp.mode = mode.fsdp;
        recipe.train.activation_checkpointing.mode = mode.recompute;
        recipe.model.shape.tie_word_embeddings = mode.tied && layout.size("dp") * layout.size("cp") == 1;
        const StepCounts counted = count_step(recipe, mesh, staged.micro_batches);
        const Decisions decisions = resolve(recipe, layout);
        const StepForecast step = simulate(decisions, {size, false}, world().rank(), {staged.micro_batches}).front();
        EXPECT_EQ(step.memory().exchange, counted.exchange - others);
        EXPECT_EQ(step.memory().total() - step.memory().exchange, counted.memory);
        EXPECT_EQ(forecast_rank(decisions, {size, false}, world().rank()).memory().total(), step.memory().total());
        EXPECT_LT(step.memory().inputs, 100'000) << "a stage's parameters or gradients are not counted as such";
        int64_t over_links = 0;
        for (const auto& [key, traffic] : counted.traffic) {
          const auto found = step.traffic.find(key);
          ASSERT_NE(found, step.traffic.end()) << key.group << " " << key.purpose;
          EXPECT_EQ(found->second.calls, traffic.calls) << key.group << " " << key.purpose;
          EXPECT_EQ(found->second.sent_bytes, traffic.sent_bytes) << key.group << " " << key.purpose;
          if (key.kind == Collective::Kind::Message) over_links += traffic.sent_bytes;
        }
        EXPECT_EQ(step.traffic.size(), counted.traffic.size());
        EXPECT_EQ(over_links, sent_over_links(decisions, mesh.coordinate("pp"), staged.micro_batches));
      }
    }
  }
}

/// Returns a model with many small layers.
Recipe deep_recipe(const std::string& mode, const std::string& recompute) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 64;
  shape.intermediate_size = 192;
  shape.num_hidden_layers = 23;
  shape.num_attention_heads = 8;
  shape.num_key_value_heads = 4;
  shape.head_dim = 8;
  shape.vocab_size = 512;
  recipe.parallel.fsdp.mode = mode;
  recipe.train.activation_checkpointing = {recompute, recompute == "full" ? 3 : 1};
  if (recompute == "first") recipe.train.activation_checkpointing = {.mode = "full", .first = 2};
  recipe.train.sequence_length = 256;
  recipe.train.global_batch = 40;
  recipe.train.precision = "bf16_mixed";
  recipe.optimizer.name = "adamw";
  return recipe;
}

TEST(Forecast, OfManyLayersAndMicroBatchesIsThatOfAWholeSimulation) {
  if (world().size() > 1) GTEST_SKIP() << "simulates ranks alone";
  const MeshLayout layout({{"dp", 4}, {"cp", 2}, {"tp", 2}});
  for (const std::string of : {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard", "full_shard sublayers"}) {
    const bool sublayers = of.ends_with(" sublayers");
    for (const char* recompute : {"none", "selective", "full"}) {
      for (const bool gpus : {false, true}) {
        SCOPED_TRACE(of + " " + recompute + (gpus ? " gpus" : ""));
        Recipe recipe = deep_recipe(of.substr(0, of.find(' ')), recompute);
        if (sublayers) recipe.parallel.fsdp.unit = "sublayer";
        const Decisions decisions = resolve(recipe, layout);
        const ForecastHosts hosts{8, gpus};
        const RunForecast run = forecast(decisions, hosts);
        EXPECT_EQ(run.micro_batches, 10);
        const StepForecast full = simulate(decisions, hosts, run.rank, {10}).front();
        EXPECT_NEAR(static_cast<double>(run.step.memory().total()), static_cast<double>(full.memory().total()),
                    0.002 * static_cast<double>(full.memory().total()));
        EXPECT_EQ(run.step.memory().activations, full.memory().activations);
        EXPECT_EQ(run.step.traffic.size(), full.traffic.size());
        for (const auto& [key, traffic] : full.traffic) {
          EXPECT_EQ(run.step.traffic.at(key).sent_bytes, traffic.sent_bytes) << key.group << " " << key.purpose;
          EXPECT_EQ(run.step.traffic.at(key).calls, traffic.calls) << key.group << " " << key.purpose;
        }
      }
    }
  }
}

TEST(Forecast, OfStagesOfManyLayersAndMicroBatchesIsThatOfAWholeSimulation) {
  if (world().size() > 1) GTEST_SKIP() << "simulates ranks alone";
  struct Deep {
    std::string fsdp, recompute, schedule;
    int64_t pp, stages_per_rank;
    bool gpus;
  };
  for (const Deep& of : {Deep{"no_shard", "none", "1f1b", 2, 1, false},
                         {"full_shard", "full", "1f1b", 2, 1, true},
                         {"full_shard", "first", "1f1b", 2, 1, true},
                         {"shard_grad_op", "none", "1f1b", 4, 1, true},
                         {"full_shard", "selective", "interleaved", 4, 2, true},
                         {"shard_optimizer", "none", "interleaved", 2, 2, true}}) {
    SCOPED_TRACE(of.fsdp + " " + of.recompute + " " + of.schedule + " " + std::to_string(of.pp));
    Recipe recipe = deep_recipe(of.fsdp, of.recompute);
    recipe.train.sequence_length = 64;
    recipe.train.global_batch = 24;
    recipe.parallel.pipeline = {of.schedule, of.stages_per_rank, {}};
    const MeshLayout layout({{"pp", of.pp}, {"dp", 2}, {"cp", 1}, {"tp", 2}});
    const Decisions decisions = resolve(recipe, layout);
    const ForecastHosts hosts{8, of.gpus};
    const RunForecast run = forecast(decisions, hosts);
    EXPECT_EQ(run.micro_batches, 12);
    const std::vector<int64_t> stages = stage_memory(decisions, hosts);
    int64_t fullest = 0;
    for (int64_t rank = 0; rank < layout.size(); rank += 4) {
      const StepForecast full = simulate(decisions, hosts, rank, {12}).front();
      fullest = std::max(fullest, full.memory().total());
      const StepForecast step = forecast_rank(decisions, hosts, rank);
      EXPECT_NEAR(static_cast<double>(step.memory().total()), static_cast<double>(full.memory().total()),
                  0.002 * static_cast<double>(full.memory().total()))
          << rank;
      EXPECT_EQ(step.traffic.size(), full.traffic.size());
      for (const auto& [key, traffic] : full.traffic) {
        EXPECT_EQ(step.traffic.at(key).sent_bytes, traffic.sent_bytes)
            << rank << " " << key.group << " " << key.purpose;
        EXPECT_EQ(step.traffic.at(key).calls, traffic.calls) << rank << " " << key.group << " " << key.purpose;
      }
      EXPECT_GE(static_cast<double>(stages.at(static_cast<size_t>(rank / 4))),
                0.998 * static_cast<double>(full.memory().total()));
    }
    EXPECT_GE(static_cast<double>(run.step.memory().total()), 0.998 * static_cast<double>(fullest));
  }
}

// Reused memory is that of two blocks of attention A and feed-forward F, 2 (A + F), or of two sublayers, A + F.
TEST(Forecast, OfSublayersIsLessByTheFormula) {
  if (world().size() > 1) GTEST_SKIP() << "simulates ranks alone";
  constexpr int64_t kRanks = 8, kLayers = 23;
  const MeshLayout layout({{"dp", kRanks}, {"cp", 1}, {"tp", 1}});
  Recipe recipe = deep_recipe("full_shard", "none");
  recipe.model.shape.intermediate_size = 1024;
  recipe.model.shape.vocab_size = 128;  // the embedding and the head are smaller than attention
  const auto memory_of = [&](const char* unit) {
    recipe.parallel.fsdp.unit = unit;
    return forecast(resolve(recipe, layout), {kRanks, true}).step.memory();
  };
  const StepMemory blocks = memory_of("block"), sublayers = memory_of("sublayer");
  // Elements of bf16. Each norm's weight of 64 takes 256 bytes, and so does the end of each rank's shard.
  const auto padded = [](int64_t numel) { return (numel + 128 * kRanks - 1) / (128 * kRanks) * 128 * kRanks; };
  const int64_t attention = 64 * (64 + 2 * 32 + 64) + 128, feed_forward = 3 * 64 * 1024 + 128;
  const int64_t block = padded(attention + feed_forward), both = padded(attention) + padded(feed_forward);
  EXPECT_EQ(blocks.gathered, 2 * 2 * block);
  EXPECT_EQ(sublayers.gathered, 2 * both);
  const int64_t more_padding = kLayers * (both - block) / kRanks;  // elements of a rank's shards
  EXPECT_EQ(sublayers.parameters - blocks.parameters, 4 * more_padding);
  EXPECT_EQ(blocks.gradients - sublayers.gradients, 4 * (2 * block - both - more_padding)) << "in fp32";
}

// A forecast looks at the first and the last rank: one between them holds no more.
TEST(Forecast, IsOfTheFullestRank) {
  if (world().size() > 1) GTEST_SKIP() << "simulates ranks alone";
  const MeshLayout layout({{"dp", 32}, {"cp", 8}, {"tp", 4}});
  for (const char* mode : {"no_shard", "full_shard", "hybrid_shard"}) {
    SCOPED_TRACE(mode);
    Recipe recipe = deep_recipe(mode, "none");
    recipe.model.shape.num_hidden_layers = 3;
    recipe.model.shape.vocab_size = 509;  // uneven over tp
    recipe.train.global_batch = 32;
    if (recipe.parallel.fsdp.mode == "hybrid_shard") recipe.parallel.fsdp.shard_size = 8;
    const Decisions decisions = resolve(recipe, layout);
    const ForecastHosts hosts{8, true};
    const RunForecast run = forecast(decisions, hosts);
    int64_t fullest = 0;
    for (const int64_t rank : {0, 3, 517, 1023}) {
      const StepForecast step = simulate(decisions, hosts, rank, {1}).front();
      fullest = std::max(fullest, step.memory().total());
      std::printf("%s of 1,024 ranks, rank %ld: %ld bytes\n", mode, static_cast<long>(rank),
                  static_cast<long>(step.memory().total()));
      if (rank == run.rank) {
        EXPECT_EQ(step.memory().total(), run.step.memory().total()) << rank;
      }
    }
    EXPECT_EQ(run.step.memory().total(), fullest);
    std::printf("%s of 1,024 ranks, planned: rank %ld, %ld bytes\n", mode, static_cast<long>(run.rank),
                static_cast<long>(run.step.memory().total()));
  }
}

}  // namespace
}  // namespace meshtrain::testing
