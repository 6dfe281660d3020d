// Memory of a training step on each rank while more and more of the ranks share the sequence; the rest are data
// parallel, with a sequence of their own each, so that a rank's work is the same but for the cut.
//
//   tools/build release activation_memory_benchmark
//   tools/ranks 4 build/release/benchmarks/activation_memory_benchmark RECIPE [KEY=VALUE...]
//
// Tokens are made; keys as those of --set.

#include <ATen/ATen.h>

#include <cstdio>
#include <string>
#include <vector>

#include "mesh/error.h"
#include "mesh/memory.h"
#include "runtime/config/load.h"
#include "runtime/config/validate.h"
#include "runtime/train/connect.h"
#include "runtime/train/trainer.h"

namespace meshtrain {
namespace {

constexpr double kMiB = 1 << 20;

struct Measured {
  int64_t held;         ///< between steps: parameters, gradients, optimizer
  int64_t activations;  ///< what a step takes on top, at its peak
};

/// Of the rank that takes most.
Measured measure(const Recipe& recipe, const DeviceMesh& mesh) {
  HostMemory& memory = HostMemory::counted();
  const int64_t empty = memory.live();
  Trainer trainer(recipe, mesh, at::kCPU);
  const StepBatch batch = made_step(recipe, trainer.layout(), 1, at::kCPU);
  const int64_t num_counted = trainer.count_tokens(batch);
  trainer.step(batch, num_counted, 1e-4, false);  // the first makes what is kept
  const int64_t before = memory.live();
  memory.restart_peak();
  trainer.step(batch, num_counted, 1e-4, false);
  at::Tensor most = at::tensor({before - empty, memory.peak() - before}, at::kLong);
  mesh.world().all_reduce(most, Reduce::Max).wait();
  return {most[0].item<int64_t>(), most[1].item<int64_t>()};
}

void run(const Group& world, const std::string& file, const std::vector<std::string>& overrides) {
  Recipe recipe = load_recipe(file, overrides, "");
  const bool speaks = world.rank() == 0;
  if (speaks) {
    std::printf("%s, sequence %lld\n\n", recipe.name.c_str(), static_cast<long long>(recipe.train.sequence_length));
    std::printf("| | cp | parameters, gradients, optimizer, MiB | peak activations, MiB | of cp=1 |\n");
    std::printf("|---|---|---|---|---|\n");
  }
  for (const char* algorithm : {"ring", "all_gather", "ulysses"}) {
    int64_t alone = 0;
    for (int64_t cp = 1; cp <= world.size(); cp *= 2) {
      const int64_t dp = world.size() / cp;
      recipe.parallel.mesh = {{"dp", dp}, {"cp", cp}};
      recipe.parallel.context.algorithm = algorithm;
      recipe.train.global_batch = dp * recipe.train.micro_batch;
      const MeshLayout layout = MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, world.size());
      validate(recipe, layout);
      const Measured measured = measure(recipe, DeviceMesh(layout, world));
      if (cp == 1) alone = measured.activations;
      if (!speaks) continue;
      std::printf("| %s | %lld | %.1f | %.1f | %.3f |\n", algorithm, static_cast<long long>(cp),
                  static_cast<double>(measured.held) / kMiB, static_cast<double>(measured.activations) / kMiB,
                  static_cast<double>(measured.activations) / static_cast<double>(alone));
    }
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
