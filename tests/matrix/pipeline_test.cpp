// Stages of a Transformer on several ranks give the gradients of one rank that has them all, bit for bit.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "mesh/device/aten.h"
#include "runtime/training/model/initialize.h"
#include "runtime/training/trainer/run_schedule.h"
#include "runtime/training/transformer/batch.h"
#include "runtime/training/transformer/data_parallel.h"
#include "runtime/training/transformer/transformer_part.h"
#include "tests/support/small_model.h"
#include "tests/support/stages.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// A Transformer of eight blocks, whose embedding and head are in the first and the last stage.
TrainingOptions eight_blocks(at::ScalarType dtype) {
  TrainingOptions options = small_model();
  options.shape.num_hidden_layers = 8;
  options.precision = precision_in(dtype);
  return options;
}

/// Runs the row of this rank, of its own stages, on a model that every rank has in all parts. Returns the gradients of
/// the parameters of these stages, and the loss as "loss".
Tensors gradients_of(const TrainingOptions& options, const std::vector<int64_t>& cuts, const PipelineSchedule& schedule,
                     const PipelineLinks* links) {
  const DeviceMesh alone(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
  const auto all = make_transformer(
      options, alone, at::kCPU, map_replicas(options.sharding, alone),
      [&](const Parameter& parameter) { initialize(parameter, options.seed); },
      stages_from(cuts, options.shape.num_hidden_layers + 2));
  ModelParts own;
  const int rank = links == nullptr ? 0 : links->rank();
  for (size_t stage = 0; stage < all.size(); ++stage) {
    if (schedule.rank_of(static_cast<int>(stage)) == rank) own.push_back(all[stage]);
  }
  at::manual_seed(7);
  const StepBatch batch = made_step(options, all.front()->layout(), schedule.micro_batches, at::kCPU);
  for (const ParameterGroup& group : groups_of(own)) group.fsdp->begin_step();
  const at::Tensor start = at::full({}, 1.0 / 64, at::kDouble);
  Tensors found = {{"loss", run_schedule(schedule, own, batch, start, {.links = links})}};
  for (const ParameterGroup& group : groups_of(own)) {
    group.fsdp->visit_gradients([&](const Parameter& parameter) { found[parameter.name] = parameter.tensor.clone(); });
  }
  return found;
}

TEST(Pipeline, StagesGiveTheBitsOfOneRank) {
  const int ranks = world().size();
  if (ranks > 4) GTEST_SKIP() << "4 ranks have shown it";
  const PipelineLinks links(world());
  struct Staged {
    ScheduleKind kind;
    std::vector<int64_t> cuts;  // layers with which stages begin: the embedding is layer 0, the head layer 9
    int micro_batches;
  };
  const std::vector<int64_t> uneven = ranks == 1   ? std::vector<int64_t>{}
                                      : ranks == 2 ? std::vector<int64_t>{3}
                                                   : std::vector<int64_t>{1, 4, 9};
  const std::vector<int64_t> twice = ranks == 1   ? std::vector<int64_t>{4}
                                     : ranks == 2 ? std::vector<int64_t>{2, 4, 7}
                                                  : std::vector<int64_t>{1, 2, 3, 5, 6, 8, 9};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Staged& of : {Staged{ScheduleKind::OneForwardOneBackward, uneven, 1},
                             {ScheduleKind::OneForwardOneBackward, uneven, 6},
                             {ScheduleKind::ZeroBubble, uneven, 1},
                             {ScheduleKind::ZeroBubble, uneven, 6},
                             {ScheduleKind::Interleaved, twice, 2 * ranks}}) {
      const TrainingOptions options = eight_blocks(dtype);
      const int stages = static_cast<int>(of.cuts.size()) + 1;
      const PipelineSchedule schedule = make_schedule(of.kind, ranks, stages / ranks, of.micro_batches);
      const PipelineSchedule alone = make_schedule(ScheduleKind::OneForwardOneBackward, 1, stages, of.micro_batches);
      const Tensors wanted = gradients_of(options, of.cuts, alone, nullptr);
      const Tensors found = gradients_of(options, of.cuts, schedule, ranks == 1 ? nullptr : &links);
      EXPECT_GT(found.size(), 1U);
      for (const auto& [name, tensor] : found) {
        if (name == "loss" && world().rank() + 1 != ranks) {
          EXPECT_EQ(tensor.item<double>(), 0) << "the loss is the last stage's";
        } else {
          EXPECT_TRUE(at::equal(tensor, wanted.at(name))) << name << ", " << stages << " stages, " << of.micro_batches;
        }
      }
    }
  }
}

TEST(Pipeline, InputGradientsLeaveTheWeightsOfLinearLayers) {
  if (world().size() > 1) GTEST_SKIP() << "one rank shows it";
  const TrainingOptions options = eight_blocks(at::kFloat);
  const Tensors wanted = gradients_of(options, {}, make_schedule(ScheduleKind::ZeroBubble, 1, 1, 2), nullptr);
  PipelineSchedule without = make_schedule(ScheduleKind::ZeroBubble, 1, 1, 2);
  std::erase_if(without.rows[0], [](const PipelineAction& action) {
    return action.kind == PipelineAction::Kind::WeightGradient && action.micro_batch == 1;
  });
  for (const auto& [name, tensor] : gradients_of(options, {}, without, nullptr)) {
    const bool is_deferred = name.find("_proj.weight") != std::string::npos;
    EXPECT_EQ(at::equal(tensor, wanted.at(name)), !is_deferred) << name;
  }
}

}  // namespace
}  // namespace meshtrain::testing
