// Windows when memory for them is short.
#include <gtest/gtest.h>

#include <algorithm>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/backends/mpi/shared_memory/board.h"
#include "mesh/base/cgroup.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "tests/mesh/worlds.h"
#include "tests/support/commands.h"
#include "tests/support/files.h"
#include "tests/support/hosts.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::Watchdog;
using testing::world;
using testing::world_over;

constexpr int kSpaceSeconds = 120;

TEST(WindowSpace, IsGivenToAllRanksOrNone) {
  if (world().size() == 1) GTEST_SKIP() << "needs several ranks";
  // Only the last rank has a low limit.
  const int64_t room = HostBoard::kRankBytes + WindowMemory::counted().exchange() + (1 << 20);
  const Group group = world_over({.window_bytes = room + (world().rank() == world().size() - 1 ? 0 : 8 << 20)});
  EXPECT_EQ(group.allocate(1 << 18, at::kFloat, Placement::Own).placement, Placement::Own);
  ::testing::internal::CaptureStderr();
  const GroupMemory refused = group.allocate(1 << 19, at::kFloat, Placement::Own);
  group.allocate(1 << 19, at::kFloat, Placement::Own);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(refused.placement, Placement::Private);
  at::Tensor tensor = refused.tensor;
  group.all_reduce(tensor.fill_(1)).wait();
  EXPECT_EQ(tensor[77].item<float>(), world().size());
  if (world().rank() != 0) {
    EXPECT_EQ(log, "");
    return;
  }
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  for (const char* part : {"asked for 2 MiB", "a rank may hold ", " in windows and holds ",
                           "communicate through MPI instead", "raise MESHTRAIN_WINDOW_MIB"}) {
    EXPECT_NE(log.find(part), std::string::npos) << log;
  }
}

/// Two groups that each request three fifths of the remaining space at the same time.
TEST(WindowSpace, DISABLED_OfSiblingsThatAskAtOnce) {
  const Watchdog watchdog{kSpaceSeconds};
  std::vector<int> members;
  for (int member = world().rank() % 2; member < world().size(); member += 2) members.push_back(member);
  const Group group = world().split(members, "siblings");
  at::Tensor left = at::full({1}, Cgroups().memory().value_or(0), at::kLong);
  world().broadcast(left, 0).wait();
  ASSERT_GT(left.item<int64_t>(), 0);
  ASSERT_LT(left.item<int64_t>(), int64_t{1} << 30) << "this group is limited to 1 GiB";
  const int64_t bytes = left.item<int64_t>() * 6 / 10 / group.size();
  world().barrier();
  const at::Tensor window = group.window(bytes, at::kByte, Placement::Own);
  at::Tensor given = at::full({1}, window.defined() ? 1 : 0, at::kLong);
  world().all_reduce(given).wait();
  EXPECT_EQ(given.item<int64_t>(), world().size() / 2) << "ranks have a window";
}

/// If too much were promised, the kernel would kill a rank.
TEST(WindowSpace, IsNotPromisedTwice) {
  if (world().size() > 1) GTEST_SKIP() << "starts an mpirun of its own";
  const std::string folder = testing::source_folder();
  const testing::Outcome outcome =
      testing::run("timeout 60 '" + folder + "/tests/support/limited' --memory 1073741824 '" + folder +
                   "/tools/ranks' 4 " + testing::this_program() +
                   " --gtest_also_run_disabled_tests --gtest_filter=WindowSpace.DISABLED_OfSiblingsThatAskAtOnce");
  if (outcome.status == 77) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("AskAtOnce ("), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace meshtrain
