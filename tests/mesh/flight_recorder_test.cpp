#include "mesh/flight_recorder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

Collective sum_of(const at::Tensor& tensor, const char* purpose = "test") {
  return {.kind = Collective::Kind::AllReduce, .output = tensor, .input = {}, .purpose = purpose};
}

TEST(FlightRecorder, KeepsTheLastAndWhatEachGroupHasPending) {
  FlightRecorder recorder;
  const int32_t tp = recorder.add_group({"tp"}, {0, 1}), dp = recorder.add_group({"dp"}, {0, 2});
  const at::Tensor tensor = at::zeros({2, 3});
  const int64_t first = recorder.issue(tp, sum_of(tensor, "one")), second = recorder.issue(tp, sum_of(tensor, "two"));
  recorder.issue(dp, sum_of(tensor));
  recorder.start(first);
  EXPECT_EQ(recorder.groups()[0].pending.purpose.text(), "one");
  recorder.begin_wait(first);
  EXPECT_EQ(recorder.awaited()->number, first);
  recorder.end_wait(first);
  EXPECT_FALSE(recorder.awaited());
  recorder.end(first);
  recorder.end(first);  // told twice
  std::vector<GroupFlights> groups = recorder.groups();
  EXPECT_EQ(groups[0].issued, 2);
  EXPECT_EQ(groups[0].ended, 1);
  EXPECT_EQ(groups[0].pending.number, second);
  EXPECT_EQ(groups[0].pending.in_group, 2);
  EXPECT_EQ(groups[1].pending.in_group, 1);
  EXPECT_GE(groups[0].total.count(), 0);
  EXPECT_GT(groups[0].exposed.count(), 0);
  EXPECT_EQ(groups[1].exposed.count(), 0);

  for (size_t i = 0; i < FlightRecorder::kFlights; ++i) recorder.end(recorder.issue(dp, sum_of(tensor)));
  const std::vector<Flight> flights = recorder.flights();
  ASSERT_EQ(flights.size(), FlightRecorder::kFlights);
  EXPECT_EQ(flights.front().number, 4);
  EXPECT_EQ(flights.back().in_group, 2001);
  EXPECT_EQ(recorder.groups()[0].pending.number, 0) << "it is no longer in the ring";
  EXPECT_EQ(describe(flights.back()), "all_reduce of [2, 3] Float for test");
}

TEST(FlightRecorder, ShowsTheNewestCollectiveAndEachPlaceAtOnce) {
  FlightRecorder recorder;
  const int32_t tp = recorder.add_group({"tp"}, {0, 1});
  SharedValue<NewestFlight> shown{};
  const auto newest = [&] { return shown.read(); };
  int parts = 0;
  recorder.show(&shown, [&] { ++parts; });
  recorder.set_work("forward of block 0");
  EXPECT_EQ(parts, 1);
  EXPECT_EQ(newest().flight.number, 0);
  const at::Tensor tensor = at::zeros({2, 3});
  recorder.issue(tp, sum_of(tensor, "one"));
  recorder.issue(tp, sum_of(tensor, "two"));
  EXPECT_EQ(newest().flight.in_group, 2);
  EXPECT_EQ(newest().flight.purpose.text(), "two");
  EXPECT_EQ(newest().flight.work.text(), "forward of block 0");
  EXPECT_EQ(newest().group.name.text(), "tp");
  EXPECT_EQ(newest().key, recorder.groups()[0].key);
  recorder.show(nullptr, nullptr);
  recorder.set_work("");
  recorder.issue(tp, sum_of(tensor, "three"));
  EXPECT_EQ(parts, 1);
  EXPECT_EQ(newest().flight.in_group, 2);
}

TEST(FlightRecorder, EnclosesPartsInAnActionWithItsMicroBatch) {
  FlightRecorder recorder;
  recorder.begin_trace();
  recorder.begin_action(128, "backward of stage 0");
  EXPECT_EQ(recorder.work(), "micro-batch 128, backward of stage 0");
  recorder.set_work("backward of copy of the embedding");
  EXPECT_EQ(recorder.work(), "micro-batch 128, backward of copy of the embedding");
  recorder.set_work("");
  EXPECT_EQ(recorder.work(), "micro-batch 128, backward of stage 0") << "the action goes on";
  recorder.set_work("backward of block 0");
  recorder.end_action();
  EXPECT_EQ(recorder.work(), "");
  recorder.set_work("vote");
  EXPECT_EQ(recorder.work(), "vote");
  const FlightTrace trace = recorder.take_trace();
  ASSERT_EQ(trace.actions.size(), 1u);
  ASSERT_EQ(trace.works.size(), 3u);
  const TracedWork &action = trace.actions[0], &last = trace.works[1];
  EXPECT_EQ(action.name.text(), "micro-batch 128, backward of stage 0");
  EXPECT_EQ(last.name.text(), "micro-batch 128, backward of block 0");
  EXPECT_LE(action.begun, trace.works[0].begun);
  EXPECT_LE(trace.works[0].ended, last.begun);
  EXPECT_LE(last.ended, action.ended);
  EXPECT_LE(action.ended, trace.works[2].begun) << "the vote is no part of it";
}

TEST(FlightRecorder, SumsTheCostsOfAFamily) {
  FlightRecorder recorder;
  const at::Tensor tensor = at::zeros({2, 3});
  const GroupTraits down{.name = "pp 0>1", .messages_only = true, .family = "pp"},
      up{.name = "pp 1>0", .messages_only = true, .family = "pp"};
  const Collective message{.kind = Collective::Kind::Message, .output = tensor, .input = {}, .from = 0, .to = 1};
  recorder.end(recorder.issue(recorder.add_group(down, {4, 6}), message, 24));
  recorder.end(recorder.issue(recorder.add_group(up, {6, 4}), message, 24));
  recorder.end(recorder.issue(recorder.add_group({"tp"}, {4, 5}), sum_of(tensor), 12));
  const GroupCosts costs = recorder.costs();
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs.at("pp").sent_bytes, 48);
  EXPECT_EQ(costs.at("tp").sent_bytes, 12);
}

TEST(FlightRecorder, NamesALinkByBothEnds) {
  FlightRecorder recorder;
  recorder.add_group({.name = "pp 1>0", .messages_only = true, .family = "pp"}, {6, 4});
  recorder.add_group({"tp"}, {4, 5});
  EXPECT_EQ(describe(label_of(recorder.groups()[0])), "link pp 1>0 from rank 6 to rank 4");
  EXPECT_EQ(describe(label_of(recorder.groups()[1])), "group tp");
}

TEST(FlightRecorder, GroupsOfTheSameRanksHaveTheirOwnKeys) {
  FlightRecorder one, other;
  one.add_group({"dp"}, {0, 1});
  one.add_group({"dp"}, {0, 1});
  other.add_group({"tp"}, {1, 2});
  other.add_group({"dp"}, {0, 1});
  other.add_group({"dp"}, {0, 1});
  const std::vector<GroupFlights> mine = one.groups(), theirs = other.groups();
  EXPECT_NE(mine[0].key, mine[1].key);
  EXPECT_EQ(mine[0].key, theirs[1].key);
  EXPECT_EQ(mine[1].key, theirs[2].key);
}

TEST(FlightRecorder, CollectivesOfOneGroupFit) {
  FlightRecorder recorder;
  const int32_t group = recorder.add_group({"tp"}, {0, 1});
  const auto flight = [&](Collective collective) {
    recorder.issue(group, collective);
    return recorder.flights().back();
  };
  const Flight one = flight(sum_of(at::zeros({2, 3})));
  EXPECT_TRUE(fit(one, flight(sum_of(at::zeros({2, 3}), "other purpose"))));
  EXPECT_FALSE(fit(one, flight(sum_of(at::zeros({3, 2})))));
  EXPECT_FALSE(fit(one, flight(sum_of(at::zeros({2, 3}, at::kDouble)))));
  Collective largest = sum_of(at::zeros({2, 3}));
  largest.reduce = Reduce::Max;
  EXPECT_FALSE(fit(one, flight(largest)));
  EXPECT_FALSE(
      fit(one, flight({.kind = Collective::Kind::Broadcast, .output = at::zeros({2, 3}), .input = {}, .from = 0})));
}

// On several ranks: what each of them records of a mesh's groups, with ends that the transport reports.
TEST(FlightRecorder, SeesEveryCollectiveOfAMesh) {
  const int64_t n = world().size();
  if (n == 1) GTEST_SKIP() << "one rank issues none";
  FlightRecorder recorder;
  std::vector<int> everyone(static_cast<size_t>(n));
  std::iota(everyone.begin(), everyone.end(), 0);
  const Group recorded(record_flights(world().backend(), recorder, {"world"}, everyone), "world", world().ranks(),
                       world().coordinate_text());
  const DeviceMesh mesh(MeshLayout({{"dp", n / 2}, {"cp", 1}, {"tp", 2}}), recorded);
  const Group tp = mesh.group("tp").with_purpose("sum");
  at::Tensor tensor = at::ones({8});
  const Work work = tp.all_reduce(tensor);
  work.wait();
  const Flight flight = recorder.flights().back();
  EXPECT_EQ(flight.purpose.text(), "sum");
  EXPECT_NE(flight.ended, Flight::Clock::time_point{});
  EXPECT_LE(flight.issued, flight.started);
  EXPECT_LE(flight.started, flight.ended);
  const GroupFlights group = recorder.groups()[static_cast<size_t>(flight.group)];
  EXPECT_EQ(group.name, "tp");
  const auto rank = static_cast<int>(world().rank());
  EXPECT_EQ(group.ranks, (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
  EXPECT_EQ(group.issued, group.ended);
  at::Tensor keys = at::zeros({n}, at::kLong);
  keys[rank] = static_cast<int64_t>(group.key);
  world().all_reduce(keys).wait();
  EXPECT_EQ(keys[rank / 2 * 2].item<int64_t>(), keys[rank / 2 * 2 + 1].item<int64_t>());
  if (n > 2) {
    EXPECT_NE(keys[0].item<int64_t>(), keys[n - 1].item<int64_t>());
  }
}

}  // namespace
}  // namespace meshtrain::testing
