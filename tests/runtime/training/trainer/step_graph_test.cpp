// Steps through a StepGraph whose graph repeats the recorded work: a value that does not pass through the recorded
// tensors keeps its recorded value, which this test detects.

#include "runtime/training/trainer/step_graph.h"

#include <gtest/gtest.h>

#include <map>

#include "mesh/device/aten.h"
#include "runtime/training/transformer/held_out_loss.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/support/small_model.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::precision_in;
using testing::small_model;
using testing::world;

struct Counts {
  int recorded = 0, replayed = 0;
};

class AgainGraph final : public DeviceGraph {
 public:
  explicit AgainGraph(Counts& counts) : counts_(counts) {}

  void record(const std::function<void()>& work) override {
    ++counts_.recorded;
    work_ = work;
  }
  void replay() override {
    ++counts_.replayed;
    work_();
  }

 private:
  Counts& counts_;
  std::function<void()> work_;
};

/// Returns options of two micro-batches, in fp32 or mixed with `compute`; in bf16 sublayers are units.
TrainingOptions options_in(at::ScalarType compute) {
  TrainingOptions options = small_model();
  options.batch.global_batch = 4;
  options.has_documents = true;
  options.units.sublayers = compute == at::kBFloat16;
  options.precision = precision_in(compute, /*mixed=*/compute != at::kFloat);
  // The first steps overflow; the graph is in use when the scale becomes right.
  if (compute == at::kHalf) options.loss_scale = LossScaleOptions{.initial = 0x1p26, .growth_interval = 2};
  return options;
}

std::map<std::string, at::Tensor> shards_of(TransformerTrainer& trainer) {
  std::map<std::string, at::Tensor> all;
  trainer.fsdp().visit_shards([&](const Parameter& parameter) { all[parameter.name] = parameter.valid().clone(); });
  return all;
}

class StepGraphIn : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(StepGraphIn, StepsAreThoseWithoutIt) {
  const TrainingOptions options = options_in(GetParam());
  const DeviceMesh mesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), world());
  TransformerTrainer with(options, mesh, at::kCPU), without(options, mesh, at::kCPU);
  Counts counts;
  with.use_graph(std::make_unique<AgainGraph>(counts));
  bool skipped = false;
  for (int step = 0; step < 24; ++step) {
    StepBatch batch = made_step(with.options(), with.layout(), 2, at::kCPU);
    const bool has_documents = step == 9, measure = step == 12, stop = step == 14, saved = step == 15;
    if (has_documents) batch.micro_batches[1].documents = {{5}, {}};
    if (step == 10) {
      const int64_t length = options.batch.sequence_length;
      batch.micro_batches[0].positions = at::arange(length).remainder(4).expand({options.batch.micro_batch, length});
    }
    if (step % 3 == 1) batch.micro_batches[0].labels.narrow(0, 0, 7).fill_(kIgnoredLabel);
    const int64_t counted = count_labels(batch.micro_batches[0]) + count_labels(batch.micro_batches[1]);
    const double rate = 1e-3 * (step + 1);
    const StepOutcome outcome = with.step(batch, counted, {rate, stop, saved, measure});
    const StepOutcome expected = without.step(batch, counted, {rate, stop, saved, measure});
    EXPECT_TRUE(at::allclose(outcome.values, expected.values, 0, 0, /*equal_nan=*/true)) << "step " << step;
    EXPECT_EQ(outcome.loss_scale, expected.loss_scale) << "step " << step;
    EXPECT_EQ(outcome.read().num_stop, stop ? 1 : 0);
    EXPECT_EQ(outcome.read().num_saved, saved ? 1 : 0);
    skipped = skipped || outcome.read().non_finite;
    if (measure) {  // not a number when the step is skipped
      EXPECT_TRUE(at::allclose(outcome.parameters, expected.parameters, 0, 0, /*equal_nan=*/true)) << "step " << step;
    }
    if (step == 17) {
      const auto next = [&] { return batch.micro_batches[0]; };
      EXPECT_EQ(held_out_loss(with.parts(), 1, next)->mean, held_out_loss(without.parts(), 1, next)->mean);
    }
  }
  EXPECT_EQ(counts.recorded, 1);
  EXPECT_EQ(counts.replayed, 24 - 3 - 3) << "all but the first three, those with documents and positions, the measured";
  EXPECT_EQ(skipped, GetParam() == at::kHalf);
  const auto weights = shards_of(with), wanted = shards_of(without);
  for (const auto& [name, values] : wanted) EXPECT_TRUE(at::equal(weights.at(name), values)) << name;
}

INSTANTIATE_TEST_SUITE_P(All, StepGraphIn, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

TEST(StepGraph, SaysWhatStandsAgainstIt) {
  TrainingOptions options;
  EXPECT_EQ(StepGraph::hindrance(options, at::kCUDA, true, false), "");
  EXPECT_NE(StepGraph::hindrance(options, at::kCPU, true, false), "");
  EXPECT_NE(StepGraph::hindrance(options, at::kCUDA, false, false), "");
  EXPECT_NE(StepGraph::hindrance(options, at::kCUDA, true, true).find("offloaded"), std::string::npos);
  options.rounding_seed = 1;
  EXPECT_NE(StepGraph::hindrance(options, at::kCUDA, true, false).find("stochastic"), std::string::npos);
  options.optimizer.name = "muon";
  EXPECT_NE(StepGraph::hindrance(options, at::kCUDA, true, false).find("muon"), std::string::npos);
}

}  // namespace
}  // namespace meshtrain
