// A step whose loss or gradients are not finite changes nothing, on every rank, for any cut of the model.

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "mesh/device/aten.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/data/dataset.h"
#include "tests/matrix/cell.h"
#include "tests/matrix/comparison.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// A way to cut the model over all ranks.
struct Cut {
  const char* axis;
  const char* sharding;
};
const std::vector<Cut> kCuts = {{"dp", "no_shard"},   {"dp", "shard_optimizer"}, {"dp", "shard_grad_op"},
                                {"dp", "full_shard"}, {"dp", "hybrid_shard"},    {"cp", "full_shard"},
                                {"cp", "no_shard"},   {"tp", "no_shard"}};

class NonFinite : public ::testing::Test {
 protected:
  NonFinite() {
    if (world().rank() == 0) write_tokens(folder_.path());
    world().barrier();
  }

  Recipe recipe(const Cut& cut, const std::string& precision) const {
    const int64_t n = world().size();
    const std::string axis = cut.axis;
    const Variant variant{"llama", false, "mha", "none", "one", precision, "adamw"};
    const bool hybrid = std::string(cut.sharding) == "hybrid_shard";
    const Cell cell{variant,
                    axis == "dp" ? n : 1,
                    axis == "tp" ? n : 1,
                    axis == "cp" ? n : 1,
                    n > 1 && axis == "cp" ? "all_gather" : "none",
                    "contiguous",
                    axis == "tp" && n > 1,
                    1,
                    hybrid && n == 1 ? "no_shard" : cut.sharding};
    return recipe_of(cell, /*alone=*/n == 1, folder_.path());
  }

  DeviceMesh mesh(const Cut& cut) const {
    const auto size = [&](const char* axis) { return std::string(cut.axis) == axis ? world().size() : 1; };
    return DeviceMesh(MeshLayout({{"dp", size("dp")}, {"cp", size("cp")}, {"tp", size("tp")}}), world());
  }

  const ScratchFolder folder_{world()};
};

/// Returns the values in the shards of every parameter.
std::map<std::string, at::Tensor> shards_of(TransformerTrainer& trainer) {
  std::map<std::string, at::Tensor> all;
  trainer.fsdp().visit_shards([&](const Parameter& parameter) { all[parameter.name] = parameter.valid().clone(); });
  return all;
}

void expect_equal(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_TRUE(at::equal(values, b.at(name))) << name;
}

std::vector<StepBatch> read_steps(const Recipe& recipe, const DeviceMesh& mesh, const SequenceLayout& layout) {
  const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
  std::vector<StepBatch> batches;
  for (int64_t step = 0; step < 2; ++step) batches.push_back(read_step(dataset, recipe.train, mesh, layout, step));
  return batches;
}

constexpr const char* kPoisoned = "model.layers.1.self_attn.k_proj.weight";

/// One rank's gradient is not a number: no rank changes weights or optimizer state, and the next step is that of a run
/// without the bad step.
TEST_F(NonFinite, AStepChangesNothingOnAnyRank) {
  for (const Cut& cut : kCuts) {
    SCOPED_TRACE(std::string(cut.axis) + " " + cut.sharding);
    const Recipe asked = recipe(cut, "fp32");
    const DeviceMesh ranks = mesh(cut);
    TransformerTrainer trainer(resolve(asked, ranks.layout()), ranks, at::kCPU),
        untroubled(resolve(asked, ranks.layout()), ranks, at::kCPU);
    const std::vector<StepBatch> batches = read_steps(asked, ranks, trainer.layout());
    const int64_t counted = trainer.count_tokens(batches[0]);
    trainer.step(batches[0], counted, {1e-3});
    untroubled.step(batches[0], counted, {1e-3});
    const auto before = shards_of(trainer);

    bool poisons = world().rank() == world().size() - 1;
    for (TransformerTrainer* each : {&trainer, &untroubled}) {  // a hook can change the order of sums, so both have one
      for (const Parameter* parameter : each->model().parameters()) {
        if (parameter->name != kPoisoned) continue;
        parameter->tensor.register_hook([&poisons](const at::Tensor& gradient) {
          return poisons ? gradient * std::numeric_limits<float>::quiet_NaN() : gradient;
        });
      }
    }
    const StepOutcome outcome = trainer.step(batches[1], counted, {1e-3});
    EXPECT_TRUE(outcome.non_finite.item<bool>());
    EXPECT_TRUE(std::isfinite(outcome.loss.item<double>()));
    EXPECT_EQ(trainer.find_non_finite(), kPoisoned);
    expect_equal(shards_of(trainer), before);

    poisons = false;
    EXPECT_FALSE(trainer.step(batches[1], counted, {1e-3}).non_finite.item<bool>());
    untroubled.step(batches[1], counted, {1e-3});
    expect_equal(shards_of(trainer), shards_of(untroubled));
  }
}

/// A scale that is far too large overflows in fp16. It is halved until it does not, and the next step counts as the
/// first.
TEST_F(NonFinite, TheLossScaleFindsItsSizeAlikeOnEveryRank) {
  for (const Cut& cut : kCuts) {
    SCOPED_TRACE(std::string(cut.axis) + " " + cut.sharding);
    Recipe asked = recipe(cut, "fp16_mixed");
    asked.train.loss_scale = LossScaleOptions{.initial = 0x1p24, .growth_interval = 2};
    const DeviceMesh ranks = mesh(cut);
    TransformerTrainer trainer(resolve(asked, ranks.layout()), ranks, at::kCPU);
    const std::vector<StepBatch> batches = read_steps(asked, ranks, trainer.layout());
    const int64_t counted = trainer.count_tokens(batches[0]);
    const auto before = shards_of(trainer);
    double scale = 0x1p24;
    StepOutcome outcome = trainer.step(batches[0], counted, {1e-3});
    EXPECT_TRUE(outcome.non_finite.item<bool>());
    for (int i = 0; i < 20 && outcome.non_finite.item<bool>(); ++i) {
      EXPECT_EQ(outcome.loss_scale, scale);
      EXPECT_NE(trainer.find_non_finite(), "");
      expect_equal(shards_of(trainer), before);
      scale /= 2;
      outcome = trainer.step(batches[0], counted, {1e-3});
    }
    EXPECT_FALSE(outcome.non_finite.item<bool>());
    EXPECT_EQ(outcome.loss_scale, scale);
    EXPECT_EQ(trainer.step(batches[1], counted, {1e-3}).loss_scale, scale);
    EXPECT_EQ(trainer.step(batches[1], counted, {1e-3}).loss_scale, 2 * scale) << "two finite steps in a row";
  }
}

/// Gradients do not depend on the scale, but gradients below the range of fp16 need one.
TEST_F(NonFinite, GradientsAreUnscaledAndSmallOnesSurvive) {
  for (const Cut& cut : kCuts) {
    SCOPED_TRACE(std::string(cut.axis) + " " + cut.sharding);
    const DeviceMesh ranks = mesh(cut);
    const auto gradients = [&](const std::string& precision, double scale, const char* reduce_dtype) {
      Recipe asked = recipe(cut, precision);
      if (precision == "fp16_mixed") asked.train.loss_scale = LossScaleOptions{.fixed = scale};
      asked.parallel.fsdp.reduce_dtype = reduce_dtype;
      TransformerTrainer trainer(resolve(asked, ranks.layout()), ranks, at::kCPU);
      const StepBatch batch = read_steps(asked, ranks, trainer.layout())[0];
      const StepOutcome outcome = trainer.compute_gradients(batch, trainer.count_tokens(batch), {});
      std::vector<at::Tensor> all = {outcome.grad_norm.to(at::kFloat).reshape(1)};
      trainer.fsdp().visit_gradients(
          [&](const Parameter& parameter) { all.push_back(parameter.valid().to(at::kFloat).flatten()); });
      return at::cat(all);
    };
    const at::Tensor exact = gradients("fp32", 1, "fp32");
    const auto error = [&](double scale, const char* reduce_dtype) {
      return ((gradients("fp16_mixed", scale, reduce_dtype) - exact).norm() / exact.norm()).item<double>();
    };
    EXPECT_LT(error(1024, "fp32"), 0.01);
    EXPECT_LT(error(3000, "fp32"), 0.01) << "no power of two";
    EXPECT_LT(error(1024, "fp16"), 0.01);
    EXPECT_GT(error(0x1p-14, "fp32"), 0.05) << "too small for fp16";
  }
}

}  // namespace
}  // namespace meshtrain::testing
