// Sibling groups that hold the same values sum them in one order, on any hosts and in any memory.
#include <gtest/gtest.h>

#include <limits>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "tests/mesh/worlds.h"
#include "tests/support/hosts.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::Watchdog;
using testing::world;
using testing::world_over;

constexpr int kSiblingSeconds = 120;

/// Makes groups of every second rank; ranks 2k and 2k + 1 have the same values, and the sums must be equal.
void expect_equal_sums(const Group& parent) {
  std::vector<int> members;
  for (int member = parent.rank() % 2; member < parent.size(); member += 2) members.push_back(member);
  const Group group = parent.split(members, "every_second");
  for (const int64_t length : {1000, 300'001}) {
    const at::Tensor mine = testing::random_tensor({length}, 50 + static_cast<uint64_t>(group.rank()), at::kFloat);
    at::Tensor sum = group.allocate(length, at::kFloat, Placement::Own).tensor.copy_(mine);
    parent.barrier();
    group.all_reduce(sum).wait();
    at::Tensor all = at::empty({parent.size(), length}, at::kFloat);
    parent.all_gather(all, sum.clone().view({1, length})).wait();
    for (int rank = 1; rank < parent.size(); ++rank) ASSERT_TRUE(at::equal(all[rank], all[0])) << "rank " << rank;
  }
}

/// With 3 and 5 ranks on two hosts, one group of four has two ranks on each host, the other one and three.
TEST(Siblings, SumInOneOrderOnUnequalHosts) {
  if (world().size() < 8) GTEST_SKIP() << "needs groups of four";
  const Watchdog watchdog{kSiblingSeconds};
  ::testing::internal::CaptureStderr();
  const Group group = world_over({.hosts = {0, 0, 0, 1, 1, 1, 1, 1}});
  const std::string said = ::testing::internal::GetCapturedStderr();
  if (world().rank() == 0 && !said.empty()) {  // print once per process
    const std::string begin = "meshtrain: warning: the 8 ranks are on 2 hosts, 3 to 5 on each, so some groups";
    EXPECT_TRUE(said.starts_with(begin)) << said;
  }
  expect_equal_sums(group);
}

/// One group is on one host, or its ranks alternate; the other group is not.
TEST(Siblings, SumInOneOrderWhereverTheyLie) {
  if (world().size() < 8) GTEST_SKIP() << "needs groups of four";
  const Watchdog watchdog{kSiblingSeconds};
  expect_equal_sums(world_over({.hosts = {0, 0, 0, 1, 0, 0, 0, 1}}));
  expect_equal_sums(world_over({.hosts = {0, 0, 0, 1, 1, 1, 1, 0}}));
}

/// One group is on one host; the other is on four, where more ranks than communicate at a time sum by pairs.
TEST(Siblings, SumInOneOrderWhereMessagesGoBySteps) {
  if (world().size() < 8) GTEST_SKIP() << "needs groups of four";
  const Watchdog watchdog{kSiblingSeconds};
  expect_equal_sums(world_over({.fan_out = 3, .hosts = {0, 1, 0, 2, 0, 3, 0, 4}}));
}

/// One group sums in a window, the other has none.
TEST(Siblings, SumInOneOrderWithAWindowAndWithout) {
  if (world().size() < 8) GTEST_SKIP() << "needs groups of four";
  const Watchdog watchdog{kSiblingSeconds};
  const Group parent = world_over({.fan_out = 3});
  const int odd = parent.rank() % 2;
  const Group group = parent.split({odd, odd + 2, odd + 4, odd + 6}, "every_second");
  constexpr int64_t kLength = 300'001;  // too long for one piece on the board
  const at::Tensor mine = testing::random_tensor({kLength}, 50 + static_cast<uint64_t>(group.rank()), at::kFloat);
  const at::Tensor window = group.allocate(kLength, at::kFloat, Placement::Own).tensor;
  at::Tensor sum = odd ? mine.clone() : at::Tensor(window).copy_(mine);
  parent.barrier();
  group.all_reduce(sum).wait();
  at::Tensor all = at::empty({parent.size(), kLength}, at::kFloat);
  parent.all_gather(all, sum.clone().view({1, kLength})).wait();
  for (int rank = 1; rank < parent.size(); ++rank) ASSERT_TRUE(at::equal(all[rank], all[0])) << "rank " << rank;
}

/// The ranks of one group are refused windows; the other group has its board. Rank 0 has the limit of 0, because it
/// then prints no warning: a process prints one only once, and a later test may expect it.
TEST(Siblings, SumInOneOrderWhereOneIsRefusedMemory) {
  if (world().size() < 8) GTEST_SKIP() << "needs groups of four";
  const Watchdog watchdog{kSiblingSeconds};
  const int64_t most = world().rank() == 0 ? 0 : std::numeric_limits<int64_t>::max();
  expect_equal_sums(world_over({.window_bytes = most, .hosts = {0, 0, 0, 0, 1, 1, 1, 1}}));
}

}  // namespace
}  // namespace meshtrain
