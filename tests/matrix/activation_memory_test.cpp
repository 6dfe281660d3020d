// The activations of a step are distributed over context-parallel ranks, and each layer has as many as documented.

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/matrix/comparison.h"
#include "tests/support/full_run.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// Returns a model whose memory peaks in the feed-forward part, where only activations are held: attention needs less
/// for the kernel's buffers and the gathered keys and values (of one head among eight).
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

/// Returns the peak memory of a step, less what is held between steps. Among several ranks it is the least of a few
/// steps, because the communication thread decides how long tensors of a finished collective are held.
int64_t peak_activations(const Recipe& recipe, const DeviceMesh& mesh) {
  HostMemory& memory = HostMemory::counted();
  TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
  const StepBatch batch = made_step(trainer.options(), trainer.layout(), 1, at::kCPU);
  const int64_t num_counted = trainer.count_tokens(batch);
  trainer.step(batch, num_counted, {1e-4});  // the first step allocates what is kept
  int64_t least = std::numeric_limits<int64_t>::max();
  const int num_steps = mesh.size() == 1 ? 1 : 4;
  for (int i = 0; i < num_steps; ++i) {
    const int64_t before = memory.live();
    memory.restart_peak();
    trainer.step(batch, num_counted, {1e-4});
    least = std::min(least, memory.peak() - before);
  }
  return least;
}

TEST(ActivationMemory, FallsWithTheContextRanks) {
  const int64_t cp = world().size();
  if (cp == 1) GTEST_SKIP() << "one rank shares with nobody";
  if (cp != 4 && !is_full_run()) GTEST_SKIP() << "4 ranks; 2 and 8 in a full run";
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", cp}, {"tp", 1}}), world());
  at::Tensor complete = at::zeros({1}, at::kDouble);
  if (world().rank() == 0) complete.fill_(peak_activations(long_recipe("auto", 1), one_rank_mesh()));
  world().broadcast(complete, 0).wait();
  const double alone = complete.item<double>();
  for (const char* algorithm : {"ring", "all_gather", "ulysses"}) {
    const double share = static_cast<double>(peak_activations(long_recipe(algorithm, cp), mesh)) / alone;
    // Under Ulysses each rank has the complete sequence of the only KV head.
    const double most = algorithm == std::string("ulysses") ? 1.06 : 1.02;
    EXPECT_LT(share, most / static_cast<double>(cp)) << algorithm;
    EXPECT_GT(share, 0.98 / static_cast<double>(cp)) << algorithm << ": what is measured is not the activations";
  }
}

/// A model, and the way to train it while its activations are counted.
struct Measurement {
  std::string family, precision, checkpointing;
  int64_t tp, cp;
  bool sequence_parallel;
  std::string algorithm;
  std::string residual_dtype = "auto";
  std::string unit = "block";

  std::string describe() const {
    return family + " " + precision + " residual " + residual_dtype + " " + checkpointing +
           " tp=" + std::to_string(tp) + " cp=" + std::to_string(cp) + (sequence_parallel ? " sp " : " ") + algorithm +
           " " + unit;
  }
};

Recipe recipe_of(const Measurement& measured, int64_t num_layers) {
  Recipe recipe;
  ModelShape& shape = recipe.model.shape;
  shape.family = measured.family;
  shape.hidden_size = 64;
  shape.intermediate_size = 208;
  shape.num_hidden_layers = num_layers;
  shape.num_attention_heads = 12;
  shape.num_key_value_heads = 4;
  shape.head_dim = 8;
  shape.vocab_size = 64;
  recipe.parallel.mesh = {{"tp", measured.tp}, {"cp", measured.cp}};
  recipe.parallel.sequence_parallel = measured.sequence_parallel ? "on" : "off";
  if (measured.cp > 1) recipe.parallel.context = {measured.algorithm, "zigzag"};
  recipe.parallel.fsdp.unit = measured.unit;
  recipe.train.sequence_length = 512;
  recipe.train.global_batch = 1;
  recipe.train.precision = measured.precision;
  recipe.train.residual_dtype = measured.residual_dtype;
  const bool alternate = measured.checkpointing == "alternate";
  recipe.train.activation_checkpointing = {alternate ? "full" : measured.checkpointing, alternate ? 2 : 1};
  return recipe;
}

/// Returns the bytes of a layer according to the formulas of runtime/training/model/block.h.
double documented_bytes(const Measurement& measured) {
  const Recipe recipe = recipe_of(measured, 1);
  const ModelShape& shape = recipe.model.shape;
  const double e = measured.precision == "bf16" ? 2 : 4, w = 4, t = static_cast<double>(measured.tp);
  const double s = measured.residual_dtype == "fp32" ? 4 : e;
  const double rows = measured.sequence_parallel ? t : 1;
  const auto M = static_cast<double>(shape.hidden_size), F = static_cast<double>(shape.intermediate_size);
  const auto H = static_cast<double>(shape.num_attention_heads), K = static_cast<double>(shape.num_key_value_heads);
  const double D = 8, Q = H * D, KV = K * D;
  const auto tokens = static_cast<double>(recipe.train.sequence_length / measured.cp);

  const double full = M * s / rows + (measured.unit == "sublayer" ? M * e / rows : 0);
  const double kept_products = (2 * M * s + 2 * w) / rows + (2 * Q + 2 * KV + 2 * F) * e / t + H * w / t;
  const double elementwise = 2 * M * e / rows + F * e / t;
  const bool has_norms = shape.family == "qwen3";
  const double qk_norm = has_norms ? ((Q + KV) * e + (H + K) * w) / t : 0;
  const int64_t repeats = measured.cp / std::gcd(measured.cp, shape.num_key_value_heads / measured.tp);
  double exchanged = 0;
  if (measured.algorithm == "ulysses") {
    exchanged = (Q + (2 * static_cast<double>(repeats) - (has_norms ? 1 : 2)) * KV) * e / t;
  }
  const double selective = kept_products + qk_norm + exchanged, none = selective + elementwise;
  if (measured.checkpointing == "full") return tokens * full;
  if (measured.checkpointing == "selective") return tokens * selective;
  if (measured.checkpointing == "alternate") return tokens * (full + none) / 2;
  return tokens * none;
}

void expect_documented_slope(const Measurement& measured) {
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", measured.cp}, {"tp", measured.tp}}), world());
  const auto peak = [&](int64_t num_layers) {
    return static_cast<double>(peak_activations(recipe_of(measured, num_layers), mesh));
  };
  // A few KiB in flight at the peak must count little, so layers that keep little need to be many.
  const int64_t few = 2, many = measured.checkpointing == "full" ? 12 : 4;
  const double slope = (peak(many) - peak(few)) / static_cast<double>(many - few);
  const double documented = documented_bytes(measured);
  EXPECT_NEAR(slope / documented, 1, 0.03) << measured.describe() << ": " << slope << " against " << documented;
}

TEST(ActivationMemory, OfALayerIsTheDocumentedFormula) {
  const int64_t n = world().size();
  for (const char* checkpointing : {"none", "selective", "full", "alternate"}) {
    if (n == 1) {
      expect_documented_slope({"llama", "fp32", checkpointing, 1, 1, false, "none"});
      expect_documented_slope({"llama", "bf16", checkpointing, 1, 1, false, "none"});
      expect_documented_slope({"llama", "bf16", checkpointing, 1, 1, false, "none", "fp32"});
      expect_documented_slope({"qwen3", "fp32", checkpointing, 1, 1, false, "none"});
      expect_documented_slope({"llama", "bf16", checkpointing, 1, 1, false, "none", "fp32", "sublayer"});
    } else if (n <= 4) {
      for (const bool sequence_parallel : {false, true}) {
        expect_documented_slope(
            {"llama", "fp32", checkpointing, 2, n / 2, sequence_parallel, n == 2 ? "none" : "ring"});
        if (n == 2) {
          expect_documented_slope(
              {"llama", "fp32", checkpointing, 2, 1, sequence_parallel, "none", "auto", "sublayer"});
        }
      }
      if (n > 2) continue;
      for (const char* algorithm : {"ring", "all_gather", "ulysses"}) {
        expect_documented_slope({"llama", "fp32", checkpointing, 1, 2, false, algorithm});
        expect_documented_slope({"qwen3", "fp32", checkpointing, 1, 2, false, algorithm});
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
