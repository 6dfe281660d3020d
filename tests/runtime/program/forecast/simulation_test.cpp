#include "runtime/program/forecast/simulation.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "mesh/device/aten.h"
#include "mesh/device/row_chunks.h"
#include "runtime/program/forecast/forecast.h"
#include "runtime/program/recipe/load.h"
#include "tests/support/files.h"

namespace meshtrain::testing {
namespace {

TEST(RowChunks, OfTheSameSizeAreOneOnTheMetaDevice) {
  using Ranges = std::vector<std::array<int64_t, 3>>;  // first, count, calls that it stands for
  const auto visited = [](const at::Tensor& tensor, int64_t rows) {
    Ranges ranges;
    for_row_chunks(tensor, rows, kTemporaryBytes / 4, [&](int64_t first, int64_t count) {
      ranges.push_back({first, count, RepeatedCalls::current()});
    });
    return ranges;
  };
  const at::Tensor meta = at::empty({10}, at::TensorOptions(at::kMeta)), host = at::empty({10});
  EXPECT_EQ(visited(meta, 10), (Ranges{{0, 4, 2}, {8, 2, 1}}));
  EXPECT_EQ(visited(meta, 8), (Ranges{{0, 4, 2}}));
  EXPECT_EQ(visited(meta, 3), (Ranges{{0, 3, 1}}));
  EXPECT_EQ(visited(host, 10), (Ranges{{0, 4, 1}, {4, 4, 1}, {8, 2, 1}})) << "which has memory";
}

TEST(Simulation, HasTheSameMemoryWithAndWithoutARecordOfOperators) {
  Recipe recipe = load_recipe(source_folder() + "/recipes/quickstart.yaml",
                              {"train.precision=fp16_mixed", "train.sequence_length=2048", "train.global_batch=2",
                               "train.micro_batch=1", "model.vocab_size=2500", "model.num_hidden_layers=2"},
                              "");
  const Decisions decisions = resolve(recipe, MeshLayout::fit({{"dp", 1}}, recipe.parallel.order, 1));
  const auto memory = [&](Recording recording) {
    return simulate(decisions, {1, false}, /*rank=*/0, {2}, recording).front().memory();
  };
  const StepMemory alone = memory(Recording::None), recorded = memory(Recording::Timeline);
  EXPECT_EQ(alone.total(), recorded.total());
  EXPECT_EQ(alone.temporaries, recorded.temporaries);
}

TEST(Simulation, OfManyMicroBatchesOfAStageFollowsFromShortSteps) {
  for (const char* schedule : {"1f1b", "interleaved"}) {
    const std::string stages = schedule == std::string("1f1b") ? "1" : "2";
    const Recipe recipe = load_recipe(
        source_folder() + "/recipes/quickstart.yaml",
        {"model.num_hidden_layers=16", "train.micro_batch=1", "train.global_batch=40", "train.sequence_length=64",
         std::string("parallel.pipeline.schedule=") + schedule, "parallel.pipeline.stages_per_rank=" + stages},
        "");
    const Decisions decisions = resolve(recipe, MeshLayout::fit({{"pp", 8}}, recipe.parallel.order, 8));
    for (const bool gpus : {false, true}) {
      SCOPED_TRACE(std::string(schedule) + (gpus ? " on GPUs" : " on hosts"));
      const StepForecast full = simulate(decisions, {8, gpus}, /*rank=*/0, {40}).front();
      const StepForecast step = forecast_rank(decisions, {8, gpus}, /*rank=*/0);
      EXPECT_EQ(step.gradients.total(), full.gradients.total());
      EXPECT_EQ(step.gradients.activations, full.gradients.activations);
      EXPECT_EQ(step.update.total(), full.update.total());
      EXPECT_EQ(step.sent_bytes(), full.sent_bytes());
      EXPECT_EQ(step.model_flops, full.model_flops);
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
