// Collectives overlap with computation and work in place: the order of issue, wait and computation.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "mesh/device/aten.h"
#include "tests/fsdp/chain.h"

namespace meshtrain {
namespace {

using testing::Chain;
using testing::input_of;

using Events = std::vector<std::string>;

/// A record of rank 0 of two ranks; rank 1 does not exist.
struct Record {
  Events events;
  std::vector<const void*> gathered;  // address, by unit
  std::vector<int64_t> numels;        // of the units
  Events on_gathers;                  // events of the queue for gathers, if there is one
  int num_queues = 0;                 // queues besides the first
};

class RecordedWait final : public Work::State {
 public:
  RecordedWait(Record& record, std::string name) : record_(record), name_(std::move(name)) {}
  void wait() override { record_.events.push_back("wait " + name_); }

 private:
  Record& record_;
  std::string name_;
};

class RecordedBackend final : public Backend {
 public:
  /// `also`: a second list for the events. `has_queues`: creates second queues.
  explicit RecordedBackend(Record& record, bool has_queues, Events* also = nullptr)
      : record_(record), has_queues_(has_queues), also_(also) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Work issue(const Collective& collective) override {
    const bool gather = collective.kind == Collective::Kind::AllGather;
    const bool sum = collective.kind == Collective::Kind::AllReduce;  // of a shard, half of its unit
    const at::Tensor& full = gather || sum ? collective.output : collective.input;
    size_t unit = 0;
    while (record_.numels[unit] != full.numel() * (sum ? 2 : 1)) ++unit;
    const std::string what = (gather ? "gather " : sum ? "sum " : "scatter ") + std::to_string(unit);
    if (gather) {
      at::Tensor(full).fill_(0.1);
      record_.gathered.resize(record_.numels.size());
      record_.gathered[unit] = full.data_ptr();
    }
    record_.events.push_back(what);
    if (also_) also_->push_back(what);
    return Work(std::make_shared<RecordedWait>(record_, what));
  }
  std::shared_ptr<Backend> split(const std::vector<int>&, const GroupTraits&) override { return nullptr; }
  std::shared_ptr<Backend> second_queue() override {
    if (!has_queues_) return nullptr;
    ++record_.num_queues;
    return std::make_shared<RecordedBackend>(record_, false, &record_.on_gathers);
  }

 private:
  Record& record_;
  bool has_queues_;
  Events* also_;
};

/// A step of a model whose units all have different sizes.
class FullShardSchedule : public ::testing::Test {
 protected:
  /// `frozen`: a unit without trainable parameters; -1: none. `num_used`: number of units, from the first, that the
  /// step uses. `remaining`: shards of gradients remain to be summed over other ranks. `in_flight`: micro-batches, each
  /// of whose forwards comes before the first backward.
  static Record record(int64_t prefetch, int64_t frozen = -1, bool two_queues = false, size_t num_used = 4,
                       bool remaining = false, int in_flight = 1) {
    Record record;
    const Chain chain;
    if (frozen >= 0) chain.weights[kWeights[static_cast<size_t>(frozen)]]->tensor.set_requires_grad(false);
    FsdpOptions options;
    options.mode = ShardingMode::FullShard;
    options.prefetch = prefetch;
    options.shards = Group(std::make_shared<RecordedBackend>(record, two_queues), "dp", {0, 1}, "rank 0");
    if (remaining) options.remaining = Group(std::make_shared<RecordedBackend>(record, false), "cp", {0, 2}, "rank 0");
    std::vector<UnitSpec> units = chain.units();
    units.erase(units.begin() + 2);  // it has the size of the unit before it
    Fsdp fsdp(units, options);
    for (const Unit& unit : fsdp.units()) record.numels.push_back(unit.buffers()[0].numel());

    fsdp.begin_step();
    std::vector<at::Tensor> outputs;
    for (int i = 0; i < in_flight; ++i) outputs.push_back(forward(chain, fsdp, record, num_used));
    for (const at::Tensor& output : outputs) {
      fsdp.begin_backward(output.is_same(outputs.back()));
      output.sum().backward();
      fsdp.end_backward();
    }
    for (const size_t weight : kWeights) {
      const at::Tensor gradient = chain.weights[weight]->tensor.grad();
      EXPECT_EQ(gradient.defined(), chain.weights[weight]->tensor.requires_grad());
      EXPECT_TRUE(!gradient.defined() || gradient.data_ptr() == nullptr) << "given back";
    }
    return record;
  }

 private:
  static inline const std::vector<size_t> kWeights = {0, 1, 3, 4};

  static at::Tensor forward(const Chain& chain, Fsdp& fsdp, Record& record, size_t num_used) {
    at::Tensor x = input_of(0, 0);
    for (size_t unit = 0; unit < num_used; ++unit) {
      x = fsdp.run(unit, [&] {
        const at::Tensor& leaf = chain.weights[kWeights[unit]]->tensor;
        EXPECT_EQ(leaf.data_ptr(), record.gathered[unit]) << "parameters are used where they were gathered";
        record.events.push_back("forward " + std::to_string(unit));
        return at::matmul(x, leaf);
      });
      if (!x.requires_grad()) continue;
      x.register_hook(
          [&record, unit](const at::Tensor&) { record.events.push_back("backward " + std::to_string(unit)); });
    }
    return x;
  }
};

TEST_F(FullShardSchedule, WithoutPrefetch) {
  const Record seen = record(0);
  EXPECT_EQ(seen.events, (Events{"gather 0",      "wait gather 0", "forward 0",  //
                                 "gather 1",      "wait gather 1", "forward 1",  //
                                 "gather 2",      "wait gather 2", "forward 2",  //
                                 "gather 3",      "wait gather 3", "forward 3",  // kept for the backward
                                 "backward 3",    "scatter 3",                   //
                                 "gather 2",      "wait gather 2", "backward 2", "scatter 2", "wait scatter 3",  //
                                 "gather 1",      "wait gather 1", "backward 1", "scatter 1", "wait scatter 2",  //
                                 "gather 0",      "wait gather 0", "backward 0", "scatter 0", "wait scatter 1",  //
                                 "wait scatter 0"}));
}

TEST_F(FullShardSchedule, GathersHaveAQueueOfTheirOwn) {
  const Record seen = record(0, -1, /*two_queues=*/true);
  EXPECT_EQ(seen.events, record(0).events);
  EXPECT_EQ(seen.on_gathers,
            (Events{"gather 0", "gather 1", "gather 2", "gather 3", "gather 2", "gather 1", "gather 0"}));
  EXPECT_TRUE(record(0).on_gathers.empty());
}

TEST_F(FullShardSchedule, OnlyFullShardGathersBesideReductions) {
  for (const ShardingMode mode :
       {ShardingMode::NoShard, ShardingMode::ShardOptimizer, ShardingMode::ShardGradOp, ShardingMode::FullShard}) {
    Record record;
    const Chain chain;
    FsdpOptions options;
    options.mode = mode;
    options.shards = Group(std::make_shared<RecordedBackend>(record, /*has_queues=*/true), "dp", {0, 1}, "rank 0");
    const Fsdp fsdp(chain.units(), options);
    EXPECT_EQ(record.num_queues, mode == ShardingMode::FullShard ? 1 : 0);
  }
}

// A frozen unit does not make the step wait earlier for the reduction of the unit after it.
TEST_F(FullShardSchedule, AFrozenUnitIsGatheredAndNotReduced) {
  const Record seen = record(0, /*frozen=*/2);
  EXPECT_EQ(seen.events, (Events{"gather 0",      "wait gather 0", "forward 0",                                  //
                                 "gather 1",      "wait gather 1", "forward 1",                                  //
                                 "gather 2",      "wait gather 2", "forward 2",                                  //
                                 "gather 3",      "wait gather 3", "forward 3",                                  //
                                 "backward 3",    "scatter 3",                                                   //
                                 "gather 2",      "wait gather 2", "backward 2",                                 //
                                 "gather 1",      "wait gather 1", "backward 1", "scatter 1", "wait scatter 3",  //
                                 "gather 0",      "wait gather 0", "backward 0", "scatter 0", "wait scatter 1",  //
                                 "wait scatter 0"}));
}

TEST_F(FullShardSchedule, NothingIsGatheredAgainBelowTheLowestTrainableParameter) {
  const Record seen = record(1, /*frozen=*/0);
  EXPECT_EQ(seen.events, (Events{"gather 0",      "wait gather 0", "gather 1",   "forward 0",                         //
                                 "wait gather 1", "gather 2",      "forward 1",                                       //
                                 "wait gather 2", "gather 3",      "forward 2",                                       //
                                 "wait gather 3", "forward 3",                                                        //
                                 "gather 2",      "backward 3",    "scatter 3",                                       //
                                 "wait gather 2", "gather 1",      "backward 2", "scatter 2",      "wait scatter 3",  //
                                 "wait gather 1", "backward 1",    "scatter 1",  "wait scatter 2",                    //
                                 "wait scatter 1"}));
}

TEST_F(FullShardSchedule, TheNextUnitIsGatheredWhileOneComputes) {
  const Record seen = record(1);
  EXPECT_EQ(seen.events, (Events{"gather 0",      "wait gather 0", "gather 1",   "forward 0",                         //
                                 "wait gather 1", "gather 2",      "forward 1",                                       //
                                 "wait gather 2", "gather 3",      "forward 2",                                       //
                                 "wait gather 3", "forward 3",                                                        //
                                 "gather 2",      "backward 3",    "scatter 3",                                       //
                                 "wait gather 2", "gather 1",      "backward 2", "scatter 2",      "wait scatter 3",  //
                                 "wait gather 1", "gather 0",      "backward 1", "scatter 1",      "wait scatter 2",  //
                                 "wait gather 0", "backward 0",    "scatter 0",  "wait scatter 1",                    //
                                 "wait scatter 0"}));
}

// Several backwards follow each other at the end of a pipeline's schedule.
TEST_F(FullShardSchedule, EveryBackwardOfAStepGathersAhead) {
  const Record seen = record(1, /*frozen=*/-1, /*two_queues=*/false, /*num_used=*/4, /*remaining=*/false,
                             /*in_flight=*/2);
  Events backwards;
  for (const std::string& event : seen.events) {
    if (event.starts_with("backward") || event.starts_with("gather")) backwards.push_back(event);
  }
  const Events once = {"gather 2", "backward 3", "gather 1", "backward 2", "gather 0", "backward 1", "backward 0"};
  Events expected = once;
  expected.push_back("gather 3");
  expected.insert(expected.end(), once.begin(), once.end());
  const auto first = std::ranges::find(backwards, "backward 3");
  ASSERT_NE(first, backwards.end());
  EXPECT_EQ(Events(first - 1, backwards.end()), expected);
}

// A shard's sum over other ranks is issued when its reduction is complete, and no backward waits for it.
TEST_F(FullShardSchedule, SumsThatRemainRunUntilTheEndOfTheStep) {
  const Record seen = record(0, /*frozen=*/-1, /*two_queues=*/false, /*num_used=*/4, /*remaining=*/true);
  EXPECT_EQ(seen.events,
            (Events{"gather 0",       "wait gather 0", "forward 0",                                            //
                    "gather 1",       "wait gather 1", "forward 1",                                            //
                    "gather 2",       "wait gather 2", "forward 2",                                            //
                    "gather 3",       "wait gather 3", "forward 3",                                            //
                    "backward 3",     "scatter 3",                                                             //
                    "gather 2",       "wait gather 2", "backward 2", "scatter 2",  "wait scatter 3", "sum 3",  //
                    "gather 1",       "wait gather 1", "backward 1", "scatter 1",  "wait scatter 2", "sum 2",  //
                    "gather 0",       "wait gather 0", "backward 0", "scatter 0",  "wait scatter 1", "sum 1",  //
                    "wait scatter 0", "sum 0",         "wait sum 3", "wait sum 2", "wait sum 1",     "wait sum 0"}));
}

// Unit 2 is gathered ahead and not used: the gather completes before another unit gets its memory.
TEST_F(FullShardSchedule, WhatIsUnderWayArrivesBeforeItsUnitIsLetGo) {
  const Record seen = record(1, /*frozen=*/-1, /*two_queues=*/false, /*num_used=*/2);
  EXPECT_EQ(seen.events, (Events{"gather 0",      "wait gather 0",  "gather 1",       "forward 0",   //
                                 "wait gather 1", "gather 2",       "forward 1",                     //
                                 "wait gather 2", "gather 1",       "wait gather 1",  "gather 0",    //
                                 "scatter 3",     "scatter 2",      "wait scatter 3", "backward 1",  //
                                 "scatter 1",     "wait scatter 2", "wait gather 0",  "backward 0",  //
                                 "scatter 0",     "wait scatter 1", "wait scatter 0"}));
}

/// Units that stay gathered for a step, and a forward of the first units without autograd.
class ShardGradOpSchedule : public ::testing::Test {
 protected:
  ShardGradOpSchedule() {
    FsdpOptions options;
    options.mode = ShardingMode::ShardGradOp;
    options.shards = Group(std::make_shared<RecordedBackend>(record_, /*has_queues=*/false), "dp", {0, 1}, "rank 0");
    std::vector<UnitSpec> units = chain_.units();
    units.erase(units.begin() + 2);  // it has the size of the unit before it
    fsdp_ = std::make_unique<Fsdp>(units, options);
    for (const Unit& unit : fsdp_->units()) record_.numels.push_back(unit.buffers()[0].numel());
  }

  /// Returns the events of a forward of the first `num_units` units.
  Events forward(size_t num_units) {
    const at::NoGradGuard no_grad;
    record_.events.clear();
    for (size_t unit = 0; unit < num_units; ++unit) {
      fsdp_->run(unit, [] { return at::zeros({1}, at::kDouble); });
    }
    return record_.events;
  }

  Record record_;
  const Chain chain_;
  std::unique_ptr<Fsdp> fsdp_;
};

// An evaluation before a step does not change what the step gathers.
TEST_F(ShardGradOpSchedule, AnEvaluationLeavesNothingGathered) {
  const Events first = forward(4);
  EXPECT_EQ(std::count(first.begin(), first.end(), "gather 3"), 1);
  EXPECT_EQ(forward(4), Events{}) << "it is gathered for the step";
  fsdp_->end_forward();
  EXPECT_EQ(forward(4), first);
}

// Otherwise gathers of a unit that is never used would accumulate.
TEST_F(ShardGradOpSchedule, WhatIsUnderWayArrivesBeforeShardsCountAsChanged) {
  EXPECT_EQ(forward(1), (Events{"gather 0", "wait gather 0", "gather 1"}));
  fsdp_->shards_changed();
  EXPECT_EQ(record_.events.back(), "wait gather 1");
}

}  // namespace
}  // namespace meshtrain
