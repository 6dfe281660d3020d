// What a step is said to have sent and waited for is what its groups have counted.

#include "runtime/program/run/step_meter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "mesh/device/aten.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/data/dataset.h"
#include "runtime/training/transformer/transformer_trainer.h"
#include "tests/matrix/cell.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

class StepMeterTest : public ::testing::Test {
 protected:
  StepMeterTest() {
    if (world().rank() == 0) write_tokens(folder_.path());
    world().barrier();
  }

  const ScratchFolder folder_{world()};
};

Group recorded_world() {
  std::vector<int> everyone(static_cast<size_t>(world().size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return Group(record_flights(world().backend(), FlightRecorder::own(), {"world"}, everyone), "world", world().ranks(),
               world().coordinate_text());
}

TEST_F(StepMeterTest, BytesByAxisAreThoseOfTheTrafficLedger) {
  const int64_t n = world().size();
  const Variant variant{"llama", true, "gqa", "none", "one", "fp32", "muon"};
  std::vector<Cell> cells = {{variant, n, 1, 1, "none", "contiguous", false, 2, "no_shard"},
                             {variant, n, 1, 1, "none", "contiguous", false, 2, "full_shard"},
                             {variant, 1, 1, n, n > 1 ? "ring" : "none", "contiguous", false, 1, "shard_grad_op"}};
  if (n >= 4) cells.push_back({variant, n / 4, 2, 2, "ulysses", "contiguous", true, 1, "no_shard"});
  const Group recorded = recorded_world();
  for (const Cell& cell : cells) {
    SCOPED_TRACE(cell.describe());
    const Recipe recipe = recipe_of(cell, /*alone=*/false, folder_.path());
    const DeviceMesh mesh(MeshLayout::fit(recipe.parallel.mesh, recipe.parallel.order, n), recorded);
    TransformerTrainer trainer(resolve(recipe, mesh.layout()), mesh, at::kCPU);
    const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
    StepMeter meter(mesh, nullptr);
    for (int64_t i = 0; i < 2; ++i) {
      mesh.traffic().clear();
      meter.begin();
      StepBatch batch = [&] {
        const StepMeter::Part part = meter.data();
        return read_batch(dataset, recipe.train, mesh, trainer.layout(), i * recipe.train.global_batch);
      }();
      const int64_t before = mesh.traffic().total("world").sent_bytes;
      if (n > 1) {  // the checkpoint's, no collective of the step
        const StepMeter::Part part = meter.checkpoint();
        at::Tensor tensor = at::ones({1000});
        mesh.world().all_reduce(tensor).wait();
      }
      const int64_t of_checkpoint = mesh.traffic().total("world").sent_bytes - before;
      EXPECT_EQ(of_checkpoint > 0, n > 1);
      const StepOutcome outcome = trainer.step(batch, trainer.count(batch).counted, {.learning_rate = 1e-3});
      const StepResult result = outcome.read();
      RankStep own = meter.end();
      own.loss = result.own_loss_sum / static_cast<double>(batch.num_counted);
      ASSERT_TRUE(outcome.optimizer_seconds);
      own.optimizer_seconds = *outcome.optimizer_seconds;
      ASSERT_EQ(own.collectives.size(), meter.groups().size());
      double exposed = 0;
      for (size_t g = 0; g < meter.groups().size(); ++g) {
        const RankStep::Collectives& of = own.collectives[g];
        const std::string& group = meter.groups()[g];
        const int64_t sent = mesh.traffic().total(group).sent_bytes - (group == "world" ? of_checkpoint : 0);
        EXPECT_EQ(of.sent_bytes, sent) << group;
        EXPECT_GE(of.exposed, 0) << meter.groups()[g];
        exposed += of.exposed;
      }
      for (const auto& [key, traffic] : mesh.traffic().entries()) {
        const auto& groups = meter.groups();
        EXPECT_NE(std::find(groups.begin(), groups.end(), key.group), groups.end()) << key.group;
      }
      // The parts exclude each other.
      EXPECT_LE(exposed + own.data_seconds + own.optimizer_seconds + own.checkpoint_seconds, own.step_seconds + 1e-4);

      const std::vector<RankStep> ranks = meter.gather(own);
      ASSERT_EQ(ranks.size(), static_cast<size_t>(n));
      const RankStep& back = ranks[static_cast<size_t>(world().rank())];
      EXPECT_EQ(back.loss, own.loss);
      EXPECT_EQ(back.host_peak, own.host_peak);
      StepMetrics metrics{1, result.loss};
      summarize(ranks, meter.groups(), metrics);
      double mean = 0, largest = -1e9, peak = 0;
      for (const RankStep& rank : ranks) {
        mean += rank.loss / static_cast<double>(n);
        largest = std::max(largest, rank.loss);
        peak = std::max(peak, rank.host_peak);
      }
      EXPECT_EQ(metrics.loss_max, largest);
      EXPECT_NEAR(mean, metrics.loss, 1e-5 * mean) << "as every rank has as many labels";
      EXPECT_EQ(metrics.host_memory.bytes, static_cast<int64_t>(peak));
      EXPECT_EQ(ranks[static_cast<size_t>(metrics.host_memory.rank)].host_peak, peak);
      EXPECT_FALSE(metrics.device_allocated);
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
