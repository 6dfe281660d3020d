#include "runtime/program/watch/activity.h"

#include <gtest/gtest.h>

#include <string>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

// Axes, their sums, shards, replicas and second queues, and links of a pipeline: a rank has more groups than axes.
TEST(Sights, HaveFortyGroupsAndThosePendingFirst) {
  FlightRecorder recorder;
  Activity activity;
  const at::Tensor tensor = at::zeros({2});
  const Collective sum{.kind = Collective::Kind::AllReduce, .output = tensor, .input = {}, .purpose = "test"};
  const auto add_group = [&](int peer) { return recorder.add_group({"to " + std::to_string(peer)}, {0, peer}); };
  for (int peer = 1; peer <= 40; ++peer) recorder.end(recorder.issue(add_group(peer), sum));
  read_flights(recorder, activity);
  EXPECT_EQ(activity.num_groups, 40);
  const int32_t last = add_group(41);
  recorder.issue(last, sum);
  read_flights(recorder, activity);
  EXPECT_EQ(activity.num_groups, 40);
  EXPECT_EQ(activity.groups[0].label.name.text(), "to 41") << "its collective has not ended";
}

// A host issues collectives of a device without waiting. The device runs them in this order, whatever their groups are.
TEST(Sights, OfADeviceItWaitsForTheFirstThatHasNotEnded) {
  FlightRecorder recorder;
  Activity activity;
  const at::Tensor tensor = at::empty({2}, at::kMeta);
  const Collective sum{.kind = Collective::Kind::AllReduce, .output = tensor, .input = {}, .purpose = "test"};
  const int32_t world = recorder.add_group({"world"}, {0, 1, 2}), tp = recorder.add_group({"tp"}, {0, 1}),
                dp = recorder.add_group({"dp"}, {0, 2});
  recorder.end(recorder.issue(tp, sum));
  recorder.issue(tp, sum);
  recorder.issue(dp, sum);
  recorder.issue(world, sum);
  read_flights(recorder, activity);
  EXPECT_TRUE(activity.waits);
  EXPECT_EQ(activity.awaited_group, recorder.groups()[static_cast<size_t>(tp)].key);
  EXPECT_EQ(activity.awaited, 2);
}

}  // namespace
}  // namespace meshtrain
