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
  const auto add_group = [&](int peer) { return recorder.add_group("to " + std::to_string(peer), {0, peer}); };
  for (int peer = 1; peer <= 40; ++peer) recorder.end(recorder.issue(add_group(peer), sum));
  read_flights(recorder, activity);
  EXPECT_EQ(activity.num_groups, 40);
  const int32_t last = add_group(41);
  recorder.issue(last, sum);
  read_flights(recorder, activity);
  EXPECT_EQ(activity.num_groups, 40);
  EXPECT_EQ(activity.groups[0].name.text(), "to 41") << "its collective has not ended";
}

}  // namespace
}  // namespace meshtrain
