#include "mesh/skipped_sums.h"

#include <gtest/gtest.h>

#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

double own() {
  return world().rank() + 1.0;
}

/// Returns 1 + 2 + ... over the ranks.
double sum_of_all() {
  return world().size() * (world().size() + 1) / 2.0;
}

double reduced(const Group& group, const std::string& purpose, Reduce op = Reduce::Sum) {
  at::Tensor tensor = at::full({1}, own(), at::kDouble);
  group.with_purpose(purpose).all_reduce(tensor, op).wait();
  return tensor.item<double>();
}

TEST(SkippedSums, TakeAPurposeOrAllOfAnAxis) {
  const auto seen = std::make_shared<SumsSeen>();
  const Group by_axis = skip_sums(world(), "dp", seen), by_purpose = skip_sums(world(), "dp.gradients");
  for (const Group& group : {by_axis, by_purpose}) {
    EXPECT_EQ(reduced(group, "dp.gradients"), own());
    EXPECT_EQ(reduced(group, "dpx"), sum_of_all());
    EXPECT_EQ(reduced(group, "tp.linear"), sum_of_all());
  }
  EXPECT_EQ(reduced(by_axis, "dp"), own());
  EXPECT_EQ(reduced(by_purpose, "dp"), sum_of_all());
  EXPECT_EQ(reduced(by_axis, "dp.gradients", Reduce::Max), static_cast<double>(world().size()));
  if (world().size() == 1) return;
  EXPECT_EQ(seen->purposes, (std::set<std::string>{"dp", "dp.gradients", "dpx", "tp.linear"}));
  EXPECT_EQ(seen->num_skipped, 2);
}

TEST(SkippedSums, KeepTheOwnPartOfAReduceScatter) {
  const Group group = skip_sums(world(), "dp").with_purpose("dp.gradients");
  const at::Tensor input = at::arange(2 * world().size(), at::kDouble) * own();
  at::Tensor shard = at::zeros({2}, at::kDouble);
  group.reduce_scatter(shard, input).wait();
  EXPECT_TRUE(at::equal(shard, input.narrow(0, 2 * world().rank(), 2)));
}

TEST(SkippedSums, AreThoseOfEveryGroupOfAMesh) {
  const DeviceMesh mesh(MeshLayout({{"dp", world().size()}, {"cp", 1}, {"tp", 1}}), skip_sums(world(), "dp.gradients"));
  EXPECT_EQ(reduced(mesh.group("dp"), "dp.gradients"), own());
  EXPECT_EQ(reduced(mesh.group("dp"), "count"), sum_of_all());
}

}  // namespace
}  // namespace meshtrain::testing
