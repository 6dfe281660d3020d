#include "runtime/program/forecast/time_forecast.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

/// A machine on which an operator of 1 FLOP takes a second, and so does a byte that is sent.
Machine slow_machine() {
  Machine machine;
  machine.peak_flops.fp32 = 1;
  machine.product_share = 1;
  machine.memory_bandwidth = 1e9;
  machine.on_host = {1, 0};
  return machine;
}

OperatorCall product(double seconds, TimelinePart part = TimelinePart::Gradients) {
  OperatorCall call;
  call.kind = OperatorCall::Kind::Product;
  call.part = part;
  call.flops = seconds;
  call.product = {1, 1, 1, 1};
  return call;
}

CollectiveCall collective(double seconds, int queue, const std::string& group) {
  CollectiveCall call{Collective::Kind::Exchange};
  call.group = group;
  call.queue = queue;
  call.size = 2;
  call.buffer_bytes = call.sent_bytes = seconds;
  return call;
}

TEST(TimeForecast, ComputingHidesWhatItDoesNotWaitFor) {
  const Timeline timeline{{collective(3, 0, "dp"), product(2), CollectiveWait{0}, product(4)}, {}};
  const TimeForecast time = time_of(timeline, slow_machine());
  EXPECT_DOUBLE_EQ(time.products, 6);
  EXPECT_DOUBLE_EQ(time.collectives.at("dp"), 3);
  EXPECT_DOUBLE_EQ(time.exposed.at("dp"), 1);
  EXPECT_DOUBLE_EQ(time.total(), 7);
}

TEST(TimeForecast, QueuesRunBesideEachOtherAndEachInOrder) {
  const Timeline one{{collective(3, 0, "dp"), collective(3, 0, "dp"), CollectiveWait{1}}, {}};
  EXPECT_DOUBLE_EQ(time_of(one, slow_machine()).total(), 6);
  const Timeline two{{collective(3, 0, "dp"), collective(3, 1, "tp"), CollectiveWait{1}, CollectiveWait{0}}, {}};
  EXPECT_DOUBLE_EQ(time_of(two, slow_machine()).total(), 3);
}

TEST(TimeForecast, AStepEndsWithItsLastCollective) {
  const Timeline timeline{{collective(5, 0, "dp"), product(2, TimelinePart::Update)}, {}};
  const TimeForecast time = time_of(timeline, slow_machine());
  EXPECT_DOUBLE_EQ(time.optimizer, 2);
  EXPECT_DOUBLE_EQ(time.total(), 5);
}

TEST(TimeForecast, ActionsOfAPipelineDoNotWaitForMessages) {
  CollectiveCall sent = collective(3, 0, "pp 0>1"), received = collective(3, 1, "pp 1>0");
  sent.kind = received.kind = Collective::Kind::Message;
  received.sent_bytes = 0;
  const PipelineAction forward{PipelineAction::Kind::Forward, 0, 0}, backward{PipelineAction::Kind::Backward, 0, 0};
  const Timeline timeline{
      {product(1), ActionBegin{forward}, product(2), sent, received, ActionBegin{backward}, CollectiveWait{1},
       product(4), ActionBegin{}, CollectiveWait{0}, product(1, TimelinePart::Update)},
      {}};
  Machine machine = slow_machine();
  const ActionSeconds actions = actions_of(timeline, machine);
  EXPECT_DOUBLE_EQ(actions.before, 1);
  EXPECT_DOUBLE_EQ(actions.actions.at(forward), 2);
  EXPECT_DOUBLE_EQ(actions.actions.at(backward), 4);
  EXPECT_DOUBLE_EQ(actions.after, 1);
  EXPECT_DOUBLE_EQ(actions.message, 3);
  EXPECT_DOUBLE_EQ(time_of(timeline, machine).total(), 8);
  machine.overlap = 0.5;
  EXPECT_DOUBLE_EQ(actions_of(timeline, machine).actions.at(forward), 5) << "each end holds up computing for a half";
  EXPECT_DOUBLE_EQ(time_of(timeline, machine).exposed.at("pp"), 3);
}

TEST(TimeForecast, CollectivesThatNeedTheProcessorHoldUpComputing) {
  Machine machine = slow_machine();
  machine.overlap = 0.25;
  const Timeline timeline{{collective(4, 0, "dp"), product(10), CollectiveWait{0}}, {}};
  EXPECT_DOUBLE_EQ(time_of(timeline, machine).total(), 13);
}

CopyCall copy(double seconds, CopyDirection direction, std::optional<size_t> after = {}) {
  return {.direction = direction, .bytes = seconds, .after = after};
}

/// A slow machine whose copies take a second for a byte to the GPU, and half of one back.
Machine offloading_machine() {
  Machine machine = slow_machine();
  machine.host = {.to_gpu = 1, .to_host = 2, .update = 4};
  return machine;
}

TEST(TimeForecast, ComputingHidesCopiesThatItDoesNotWaitFor) {
  const Timeline timeline{{copy(3, CopyDirection::ToDevice), product(2), CopyWait{0}, product(4)}, {}};
  const TimeForecast time = time_of(timeline, offloading_machine());
  EXPECT_DOUBLE_EQ(time.copies, 3);
  EXPECT_DOUBLE_EQ(time.exposed_copies, 1);
  EXPECT_DOUBLE_EQ(time.total(), 7);
  EXPECT_DOUBLE_EQ(time_of(timeline, slow_machine()).total(), 6) << "a rate that is not known takes no time";
}

TEST(TimeForecast, CopiesInBothDirectionsRunAtOnce) {
  const Timeline both{{copy(4, CopyDirection::ToDevice), copy(4, CopyDirection::ToHost)}, {}};
  EXPECT_DOUBLE_EQ(time_of(both, offloading_machine()).total(), 4);
  const Timeline one{{copy(4, CopyDirection::ToDevice), copy(4, CopyDirection::ToDevice)}, {}};
  EXPECT_DOUBLE_EQ(time_of(one, offloading_machine()).total(), 8) << "they share the bus";
  const Timeline stream{{copy(4, CopyDirection::ToDevice), copy(4, CopyDirection::ToHost, 0)}, {}};
  EXPECT_DOUBLE_EQ(time_of(stream, offloading_machine()).total(), 6) << "a stream has an order";
}

TEST(TimeForecast, AGatherFollowsTheCopyOfItsShard) {
  CollectiveCall gather = collective(3, 0, "dp");
  gather.after_copy = 0;
  const Timeline timeline{{copy(2, CopyDirection::ToDevice), gather, CollectiveWait{0}}, {}};
  EXPECT_DOUBLE_EQ(time_of(timeline, offloading_machine()).total(), 5);
}

TEST(TimeForecast, TheHostUpdatesAtItsOwnRate) {
  OperatorCall update;
  update.part = TimelinePart::HostUpdate;
  update.bytes = 12;
  const Timeline timeline{{update, copy(1, CopyDirection::ToDevice)}, {}};
  const TimeForecast time = time_of(timeline, offloading_machine());
  EXPECT_DOUBLE_EQ(time.optimizer, 3);
  EXPECT_DOUBLE_EQ(time.total(), 4);
}

TEST(TimeForecast, RanksOfAHostShareTheMostThatUpdatesReach) {
  OperatorCall update;
  update.part = TimelinePart::HostUpdate;
  update.bytes = 12;
  Machine machine = offloading_machine();
  machine.host.update_all = 6;
  for (const auto& [ranks, seconds] : {std::pair{1, 3.0}, {2, 4.0}, {6, 12.0}}) {
    const Timeline timeline{{update}, {}, ranks};
    EXPECT_DOUBLE_EQ(time_of(timeline, machine).optimizer, seconds) << ranks;
  }
}

TEST(TimeForecast, EachCollectiveThatIsWaitedForCostsAWait) {
  Machine machine = slow_machine();
  machine.wait_seconds = 0.5;
  const Timeline timeline{{collective(1, 0, "dp"), product(3), CollectiveWait{0}, CollectiveWait{0}}, {}};
  EXPECT_DOUBLE_EQ(time_of(timeline, machine).total(), 3.5);
}

}  // namespace
}  // namespace meshtrain
