// The number of messages that a rank really sends: this file intercepts the calls of MPI.
#include <gtest/gtest.h>
#include <mpi.h>

#include <atomic>

#include "mesh/backends/mpi/rank_pattern.h"
#include "mesh/device/aten.h"
#include "tests/mesh/worlds.h"
#include "tests/support/world.h"

namespace {

std::atomic<int64_t> sent = 0, gathered = 0;

}  // namespace

extern "C" int MPI_Allgather(const void* from, int sent_count, MPI_Datatype sent_type, void* to, int count,
                             MPI_Datatype type, MPI_Comm comm) {
  ++gathered;
  return PMPI_Allgather(from, sent_count, sent_type, to, count, type, comm);
}

extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  ++sent;
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

namespace meshtrain {
namespace {

using testing::world;

// With two branches eight ranks have trees of three levels and grids of three steps, like 4,096 ranks with sixteen
// branches.
TEST(MessageCount, OfARankGrowsWithTheLogarithmOfTheGroup) {
  const int n = world().size();
  if (n == 1) GTEST_SKIP() << "one rank sends nothing";
  const Group& group = testing::world_in_pieces(4 << 20, 2);
  const RankTree tree(n, 2);
  const RankGrid grid(n, 2);
  const auto messages_of = [&](const auto& call) {
    group.barrier();
    const int64_t before = sent;
    call();
    return sent - before;
  };
  int64_t on_tree = 0;
  for (int level = 0; level < tree.levels(); ++level) on_tree += tree.members(group.rank(), level).empty() ? 0 : 1;
  at::Tensor vote = at::ones({5}, at::kDouble);
  const int64_t voted = messages_of([&] { group.all_reduce(vote).wait(); });
  EXPECT_EQ(voted, n == 2 ? 1 : on_tree);

  at::Tensor number = at::ones({1}, at::kLong), numbers = at::empty({n}, at::kLong);
  EXPECT_EQ(messages_of([&] { group.all_gather(numbers, number).wait(); }), grid.steps());
  at::Tensor shard = at::ones({10000}, at::kFloat), full = at::ones({10000 * n}, at::kFloat);
  EXPECT_EQ(messages_of([&] { group.reduce_scatter(shard, full).wait(); }), grid.steps());
  EXPECT_EQ(messages_of([&] { group.all_reduce(full).wait(); }), 2 * grid.steps());
  EXPECT_EQ(full[0].item<float>(), n);
  EXPECT_EQ(shard[0].item<float>(), n);
}

// The ranks of one host make a window, and one number reports a refusal to all: no message goes from each rank to each
// other.
TEST(MessageCount, WindowsGatherNothingFromAllRanks) {
  const int64_t before = gathered;
  const at::Tensor window = world().window(1000, at::TensorOptions().dtype(at::kFloat), Placement::Own);
  EXPECT_EQ(window.defined(), world().host_ranks() > 1);
  EXPECT_EQ(gathered, before);
}

}  // namespace
}  // namespace meshtrain
