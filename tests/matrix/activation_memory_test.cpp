// What context parallelism is for: the activations of a step, shared out over the ranks.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "mesh/memory.h"
#include "runtime/train/trainer.h"
#include "tests/matrix/comparison.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// A model whose memory is at its peak in the feed-forward part, where nothing is held but activations: what attention
/// needs besides, the kernel's buffers and gathered keys and values (of one head among eight), is less.
Recipe long_recipe(const std::string& algorithm, int64_t cp) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.hidden_size = 64;
  shape.intermediate_size = 768;
  shape.num_hidden_layers = 2;
  shape.num_attention_heads = 8;
  shape.num_key_value_heads = 1;
  shape.head_dim = 8;
  shape.vocab_size = 64;
  recipe.parallel.mesh = {{"cp", cp}};
  recipe.parallel.context = {algorithm, cp == 1 ? "contiguous" : "zigzag"};
  recipe.train.sequence_length = 2048;
  recipe.train.global_batch = 1;
  recipe.train.precision = "fp32";
  return recipe;
}

/// What a step takes at its peak beyond what is held between steps.
int64_t peak_activations(const Recipe& recipe, const DeviceMesh& mesh) {
  HostMemory& memory = HostMemory::counted();
  Trainer trainer(recipe, mesh, at::kCPU);
  const StepBatch batch = made_step(recipe, trainer.layout(), 1, at::kCPU);
  const int64_t num_counted = trainer.count_tokens(batch);
  trainer.step(batch, num_counted, 1e-4, false);  // the first makes what is kept
  const int64_t before = memory.live();
  memory.restart_peak();
  trainer.step(batch, num_counted, 1e-4, false);
  return memory.peak() - before;
}

TEST(ActivationMemory, FallsWithTheContextRanks) {
  const int64_t cp = world().size();
  if (cp == 1) GTEST_SKIP() << "one rank shares with nobody; run with 2, 4 and 8";
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", cp}, {"tp", 1}}), world());
  at::Tensor whole = at::zeros({1}, at::kDouble);
  if (world().rank() == 0) whole.fill_(peak_activations(long_recipe("auto", 1), one_rank_mesh()));
  world().broadcast(whole, 0).wait();
  const double alone = whole.item<double>();
  for (const char* algorithm : {"ring", "all_gather", "ulysses"}) {
    const double share = static_cast<double>(peak_activations(long_recipe(algorithm, cp), mesh)) / alone;
    EXPECT_LT(share, 1.05 / static_cast<double>(cp)) << algorithm;
    EXPECT_GT(share, 0.95 / static_cast<double>(cp)) << algorithm << ": what is measured is not the activations";
  }
}

}  // namespace
}  // namespace meshtrain::testing
