// Memory of a training step on each rank while more and more of the ranks share the sequence; the rest are data
// parallel, with a sequence of their own each, so that a rank's work is the same but for the cut. On one rank: memory
// and time of a step by train.activation_checkpointing.
//
//   tools/build release activation_memory_benchmark
//   tools/ranks 4 build/release/benchmarks/activation_memory_benchmark RECIPE [KEY=VALUE...]    # or 1
//
// Tokens are made; keys as those of --set.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/error_message.h"
#include "mesh/device/memory.h"
#include "runtime/program/launch/connect.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {
namespace {

constexpr double kMiB = 1 << 20;

struct Measurement {
  int64_t held;         ///< between steps: parameters, gradients, optimizer
  int64_t activations;  ///< what a step takes on top, at its peak
  double seconds;       ///< of a step, the best of three
};

/// Of the rank that takes most.
Measurement measure(const Recipe& recipe, const DeviceMesh& mesh) {
  HostMemory& memory = HostMemory::counted();
  const int64_t empty = memory.live();
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  const StepBatch batch = made_step(trainer.options(), trainer.layout(), 1, at::kCPU);
  const int64_t num_counted = trainer.count_tokens(batch);
  trainer.step(batch, num_counted, {1e-4});  // the first makes what is kept
  const int64_t before = memory.live();
  memory.restart_peak();
  double seconds = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    trainer.step(batch, num_counted, {1e-4});
    seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  at::Tensor most = at::tensor({before - empty, memory.peak() - before}, at::kLong);
  mesh.world().all_reduce(most, Reduce::Max).wait();
  return {most[0].item<int64_t>(), most[1].item<int64_t>(), seconds};
}

/// A row: what `cp` ranks to a sequence take, with one rank's activations `alone` (0: that is this row). Returns the
/// activations.
int64_t row(Recipe recipe, const Group& world, const std::string& algorithm, int64_t cp, int64_t alone) {
  const int64_t dp = world.size() / cp;
  recipe.parallel.mesh = {{"dp", dp}, {"cp", cp}};
  recipe.parallel.context.algorithm = algorithm;
  recipe.train.global_batch = dp * recipe.train.micro_batch;
  const MeshLayout layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, world.size());
  resolve(recipe, layout);
  const Measurement measured = measure(recipe, DeviceMesh(layout, world));
  if (world.rank() == 0) {
    const auto activations = static_cast<double>(measured.activations);
    std::printf("| %s | %d | %.1f | %.1f | %.3f |\n", cp == 1 ? "" : algorithm.c_str(), static_cast<int>(cp),
                static_cast<double>(measured.held) / kMiB, activations / kMiB,
                alone == 0 ? 1 : activations / static_cast<double>(alone));
  }
  return measured.activations;
}

void by_checkpointing(Recipe recipe, const Group& world) {
  recipe.parallel.mesh = {};
  recipe.train.global_batch = recipe.train.micro_batch;
  const MeshLayout layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, 1);
  resolve(recipe, layout);
  std::printf("%s, sequence %d\n\n", recipe.name.c_str(), static_cast<int>(recipe.train.sequence_length));
  std::printf("| checkpointing | peak activations, MiB | of none | step, s | of none |\n|---|---|---|---|---|\n");
  Measurement none{};
  const std::vector<CheckpointingRecipe> all = {{"none"}, {"selective"}, {"full", 2}, {"full"}};
  for (const CheckpointingRecipe& checkpointing : all) {
    recipe.train.activation_checkpointing = checkpointing;
    const Measurement measured = measure(recipe, DeviceMesh(layout, world));
    if (checkpointing.mode == "none") none = measured;
    const auto activations = static_cast<double>(measured.activations);
    std::printf("| %s%s | %.1f | %.2f | %.3f | %.2f |\n", checkpointing.mode.c_str(),
                checkpointing.every > 1 ? ", every 2" : "", activations / kMiB,
                activations / static_cast<double>(none.activations), measured.seconds, measured.seconds / none.seconds);
    std::fflush(stdout);
  }
}

void run(const Group& world, const std::string& file, const std::vector<std::string>& overrides) {
  const Recipe recipe = load_recipe(file, overrides, "");
  if (world.size() == 1) return by_checkpointing(recipe, world);
  if (world.rank() == 0) {
    std::printf("%s, sequence %d\n\n", recipe.name.c_str(), static_cast<int>(recipe.train.sequence_length));
    std::printf("| | cp | parameters, gradients, optimizer, MiB | peak activations, MiB | of cp=1 |\n");
    std::printf("|---|---|---|---|---|\n");
  }
  const int64_t alone = row(recipe, world, "auto", 1, 0);
  for (const char* algorithm : {"ring", "all_gather", "ulysses"}) {
    for (int64_t cp = 2; cp <= world.size(); cp *= 2) row(recipe, world, algorithm, cp, alone);
  }
}

}  // namespace
}  // namespace meshtrain

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "activation_memory_benchmark RECIPE [KEY=VALUE...]\n");
    return 2;
  }
  meshtrain::HostMemory::counted();
  try {
    meshtrain::run(meshtrain::connect_world(), argv[1], {argv + 2, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "activation_memory_benchmark: %s\n", meshtrain::message_of(error).c_str());
    return 1;
  }
}
