// Stages of a Transformer on several ranks give the gradients of one rank that has them all, bit for bit.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>

#include "mesh/device/aten.h"
#include "runtime/training/model/initialize.h"
#include "runtime/training/trainer/run_schedule.h"
#include "runtime/training/transformer/batch.h"
#include "runtime/training/transformer/data_parallel.h"
#include "runtime/training/transformer/transformer_part.h"
#include "tests/support/full_run.h"
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

/// y = x * weight in fp32, as large as 8 MiB; the last stage returns the sum of y. It has no matrix, so that messages
/// take most of the time.
class Scaling final : public ModelPart {
 public:
  static constexpr int64_t kRows = 2048, kColumns = 1024;

  Scaling(int stage, bool is_last)
      : weight_(full_parameter("stage " + std::to_string(stage), {kColumns}, {}, at::TensorOptions())),
        is_last_(is_last) {
    fsdp_ = std::make_unique<Fsdp>(std::vector{UnitSpec{weight_.name, {&weight_}}}, FsdpOptions());
    fsdp_->write_values([](const Parameter& parameter) { parameter.tensor.fill_(2); });
    groups_ = {{fsdp_.get(), ReplicaMap()}};
  }

  at::Tensor forward(const at::Tensor& input, const MicroBatch& micro_batch) override {
    const at::Tensor y = (input.defined() ? input : micro_batch.inputs) * weight_.tensor;
    return is_last_ ? y.sum() : y;
  }
  at::Tensor make_input(const MicroBatch& /*micro_batch*/) const override { return at::empty({kRows, kColumns}); }
  const std::vector<ParameterGroup>& groups() const override { return groups_; }
  at::Tensor gradient() const { return fsdp_->units().front().buffers().front().shard_gradients(); }

 private:
  Parameter weight_;
  bool is_last_;
  std::unique_ptr<Fsdp> fsdp_;
  std::vector<ParameterGroup> groups_;
};

// Such messages wait for their receiver (rendezvous), which smaller ones do not, so wrong orders would stand still.
TEST(Pipeline, MessagesThatWaitForTheirReceiverDoNotStandStill) {
  const int ranks = world().size();
  if (ranks == 1 || ranks > 4) GTEST_SKIP() << "for 2 and 4 ranks";
  const PipelineLinks links(world());
  const int64_t steps = is_full_run() ? 200 : 4;
  for (const int stages_per_rank : {1, 2}) {
    const ScheduleKind kind = stages_per_rank > 1 ? ScheduleKind::Interleaved : ScheduleKind::OneForwardOneBackward;
    const PipelineSchedule schedule = make_schedule(kind, ranks, stages_per_rank, 2 * ranks);
    ModelParts parts;
    std::vector<std::shared_ptr<Scaling>> own;
    for (int stage = world().rank(); stage < schedule.stages; stage += ranks) {
      own.push_back(std::make_shared<Scaling>(stage, stage + 1 == schedule.stages));
      parts.push_back(own.back());
    }
    StepBatch batch;
    for (int i = 0; i < schedule.micro_batches; ++i) {
      batch.micro_batches.push_back({at::full({Scaling::kRows, Scaling::kColumns}, i + 1.0F), {}});
    }
    for (int64_t step = 0; step < steps; ++step) {
      for (const auto& part : own) part->groups().front().fsdp->begin_step();
      run_schedule(schedule, parts, batch, at::ones({}, at::kDouble), {.links = &links});
    }
    // Each weight's gradient is the sum of the inputs times the other weights, of 2 each.
    const double m = schedule.micro_batches,
                 wanted = Scaling::kRows * m * (m + 1) / 2 * std::pow(2, schedule.stages - 1);
    for (const auto& part : own) EXPECT_TRUE(part->gradient().eq(wanted).all().item<bool>());
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
