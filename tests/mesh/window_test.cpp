// Memory that a group allocates, and collectives in it: on real hosts, on ranks of one host that simulate several, and
// when space is refused.
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <fstream>
#include <random>

#include "mesh/backends/dry_run.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/backends/mpi/shared_memory/board.h"
#include "mesh/device/aten.h"
#include "mesh/device/memory.h"
#include "mesh/device_mesh.h"
#include "mesh/host_map.h"
#include "mesh/instrumented.h"
#include "mesh/skipped_sums.h"
#include "tests/mesh/worlds.h"
#include "tests/support/commands.h"
#include "tests/support/files.h"
#include "tests/support/hosts.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::Hosts;
using testing::name_of;
using testing::Watchdog;
using testing::world;
using testing::world_on;
using testing::world_over;

constexpr int kWindowSeconds = 120;
const std::vector<at::ScalarType> kDtypes{at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong};
/// Returns lengths: short; one piece on the board; several pieces. The longest takes several turns in place, and
/// several chunks between hosts. The larger lengths are not multiples of their pieces.
std::vector<int64_t> lengths(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::vector<int64_t>{1, 1000, 150'001} : std::vector<int64_t>{3, 1000, 70'001};
}

/// Returns integers from -3 to 3 that differ by rank and index: sums of eight are exact in every dtype, in any order.
at::Tensor small_numbers(int rank, int64_t length, at::ScalarType dtype) {
  return ((at::arange(length, at::kLong) * 5 + rank * 3).remainder(7) - 3).to(dtype);
}

at::Tensor summed(int size, int64_t length, at::ScalarType dtype) {
  at::Tensor sum = small_numbers(0, length, at::kLong);
  for (int rank = 1; rank < size; ++rank) sum += small_numbers(rank, length, at::kLong);
  return sum.to(dtype);
}

std::string of(at::ScalarType dtype, int64_t length, Placement placement) {
  return std::string(c10::toString(dtype)) + ", length " + std::to_string(length) + ", placement " +
         std::to_string(static_cast<int>(placement));
}

/// Returns the number of ranks on each host that MPI finds.
int ranks_per_host() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  const auto mine = static_cast<int64_t>(std::hash<std::string>{}(name.data()));
  at::Tensor all = at::empty({world().size()}, at::kLong);
  world().all_gather(all, at::full({1}, mine, at::kLong)).wait();
  return all.eq(mine).sum().item<int>();
}

class Windows : public ::testing::TestWithParam<Hosts> {
 protected:
  /// Returns the placement that a group should give when `wanted` is requested.
  Placement given(Placement wanted) const {
    if (size_ == 1) return wanted;
    return ranks_per_host_ == 1 || GetParam() == Hosts::Refused ? Placement::Private : wanted;
  }

  static int ranks_per_host_of(Hosts hosts) {
    static const int found = ranks_per_host();
    if (hosts == Hosts::Each) return 1;
    return hosts == Hosts::Two || hosts == Hosts::InTurn ? std::max(world().size() / 2, 1) : found;
  }

  at::Tensor allocate(int64_t numel, at::ScalarType dtype, Placement placement) const {
    const GroupMemory memory = group_.allocate(numel, dtype, placement);
    EXPECT_EQ(memory.placement, given(placement));
    EXPECT_EQ(memory.tensor.numel(), numel);
    EXPECT_EQ(memory.tensor.scalar_type(), dtype);
    return memory.tensor;
  }

  const Group& group_ = world_on(GetParam());
  const int rank_ = group_.rank();
  const int size_ = group_.size();
  const int ranks_per_host_ = ranks_per_host_of(GetParam());  ///< ranks on each host, where they share memory
  const HostMap hosts_ = HostMap::of(group_);
  const Watchdog watchdog_{kWindowSeconds};
};

TEST_P(Windows, HoldZerosUntilTheyAreWritten) {
  for (const Placement placement : {Placement::Private, Placement::Own, Placement::Common}) {
    EXPECT_TRUE(at::equal(allocate(5000, at::kFloat, placement), at::zeros({5000})));
  }
  EXPECT_EQ(group_.allocate(0, at::kFloat, Placement::Own).tensor.numel(), 0);
  EXPECT_THROW(group_.allocate(-1, at::kFloat, Placement::Own), std::invalid_argument);
}

TEST_P(Windows, AreSharedByTheRanksOfAHost) {
  const bool any = size_ > 1 && given(Placement::Own) == Placement::Own;
  EXPECT_EQ(group_.host_ranks(), any ? ranks_per_host_ : 1);
  for (const Placement placement : {Placement::Own, Placement::Common}) {
    EXPECT_EQ(group_.window(1000, at::kFloat, placement).defined(), any);
  }
  EXPECT_FALSE(group_.window(1000, at::kFloat, Placement::Private).defined());
}

TEST_P(Windows, ReduceScatter) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t length : lengths(dtype)) {
      const at::Tensor sums = summed(size_, length * size_, dtype).view({size_, length});
      const at::Tensor mine = small_numbers(rank_, length * size_, dtype).view({size_, length});
      const at::Tensor input = allocate(length * size_, dtype, Placement::Own).view({size_, length});
      for (const int target : {-1, 0, size_ - 1}) {  // into a separate tensor, and into parts of the input
        input.copy_(mine);
        group_.barrier();
        at::Tensor shard = target < 0 ? at::zeros({1, length}, input.options()) : input.narrow(0, target, 1);
        group_.reduce_scatter(shard, input).wait();
        ASSERT_TRUE(at::equal(shard[0], sums[rank_])) << of(dtype, length, Placement::Own) << ", part " << target;
        for (int part = 0; part < size_; ++part) {
          ASSERT_TRUE(part == target || at::equal(input[part], mine[part])) << "part " << part;
        }
      }
    }
  }
}

TEST_P(Windows, AllReduce) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t part : lengths(dtype)) {
      const int64_t length = 4 * part + 1;
      at::Tensor tensor = allocate(length, dtype, Placement::Own);
      tensor.copy_(small_numbers(rank_, length, dtype));
      group_.all_reduce(tensor).wait();
      ASSERT_TRUE(at::equal(tensor, summed(size_, length, dtype))) << of(dtype, length, Placement::Own);
      tensor.copy_(small_numbers(rank_, length, dtype));
      group_.all_reduce(tensor, Reduce::Max).wait();
      at::Tensor largest = small_numbers(0, length, dtype);
      for (int rank = 1; rank < size_; ++rank) largest = at::maximum(largest, small_numbers(rank, length, dtype));
      ASSERT_TRUE(at::equal(tensor, largest)) << of(dtype, length, Placement::Own);
    }
  }
}

TEST_P(Windows, AllGather) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t length : lengths(dtype)) {
      for (const Placement placement : {Placement::Own, Placement::Common}) {
        at::Tensor output = allocate(length * size_, dtype, placement).view({size_, length});
        for (const bool in_place : {false, true}) {
          const at::Tensor mine = small_numbers(rank_, length, dtype) + static_cast<int>(in_place);
          at::Tensor shard = in_place ? output.narrow(0, rank_, 1) : mine.view({1, length});
          if (in_place) shard.copy_(mine);
          group_.all_gather(output, shard).wait();
          for (int rank = 0; rank < size_; ++rank) {
            ASSERT_TRUE(at::equal(output[rank], small_numbers(rank, length, dtype) + static_cast<int>(in_place)))
                << of(dtype, length, placement) << " of " << rank;
          }
          group_.barrier();  // before anyone overwrites data that others read
        }
      }
    }
  }
}

TEST_P(Windows, OrdinaryTensorsBesideThem) {
  for (const int64_t length : {3, 1000, 70'001}) {
    const at::Tensor window = allocate(length * size_, at::kFloat, Placement::Own);
    for (int odd = 0; odd < size_; ++odd) {  // one rank passes a tensor from other memory
      at::Tensor tensor = rank_ == odd ? at::zeros({length * size_}) : window;
      tensor.copy_(small_numbers(rank_, length * size_, at::kFloat));
      const at::Tensor sums = summed(size_, length * size_, at::kFloat);
      at::Tensor shard = at::zeros({length});
      group_.reduce_scatter(shard, tensor).wait();
      ASSERT_TRUE(at::equal(shard, sums.narrow(0, rank_ * length, length)));
      group_.all_reduce(tensor).wait();
      ASSERT_TRUE(at::equal(tensor, sums));
      group_.all_gather(tensor, at::full({length}, 1.0f + static_cast<float>(rank_))).wait();
      for (int rank = 0; rank < size_; ++rank) {
        ASSERT_TRUE(at::equal(tensor.narrow(0, rank * length, length), at::full({length}, 1.0f + rank)));
      }
    }
  }
}

/// Values that round: the same bits on every rank, in every run, with and without windows.
TEST_P(Windows, SumsHaveTheSameBitsEverywhere) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const int64_t length = 6'007;
    const at::Tensor mine = testing::random_tensor({length * size_}, 100 + static_cast<uint64_t>(rank_), dtype);
    at::Tensor first;
    for (const Placement placement : {Placement::Private, Placement::Own, Placement::Own}) {
      at::Tensor tensor = allocate(length * size_, dtype, placement);
      tensor.copy_(mine);
      group_.barrier();
      at::Tensor shard = at::empty({length}, dtype);
      group_.reduce_scatter(shard, tensor).wait();
      group_.all_reduce(tensor).wait();
      EXPECT_TRUE(at::equal(shard, tensor.narrow(0, rank_ * length, length)));
      if (!first.defined()) first = tensor.clone();
      EXPECT_TRUE(at::equal(tensor, first)) << of(dtype, length, placement);
    }
    at::Tensor everyones = at::empty({size_ * first.numel()}, dtype);
    group_.all_gather(everyones, first).wait();
    for (int rank = 0; rank < size_; ++rank) ASSERT_TRUE(at::equal(everyones.view({size_, -1})[rank], first));

    // In the order of ranks inside each host, then of hosts; halves are rounded once.
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    // Without windows, or when no two ranks share a host, there is one order.
    const bool together = given(Placement::Own) == Placement::Own;
    const HostMap one_host(std::vector<int>(static_cast<size_t>(size_), 0));
    const HostMap& hosts = together ? hosts_ : one_host;
    at::Tensor sum;
    for (int host = 0; host < hosts.num_hosts(); ++host) {
      at::Tensor part;
      for (const int rank : hosts.ranks_of(host)) {
        const at::Tensor theirs =
            testing::random_tensor({length * size_}, 100 + static_cast<uint64_t>(rank), dtype).to(wide);
        part = part.defined() ? part + theirs : theirs;
      }
      sum = sum.defined() ? sum + part : part;
    }
    EXPECT_TRUE(at::equal(first, sum.to(dtype))) << c10::toString(dtype);
  }
}

TEST_P(Windows, CommonMemoryIsThereOnce) {
  if (given(Placement::Common) != Placement::Common) GTEST_SKIP() << "this world has none";
  const at::Tensor common = allocate(1000 * size_, at::kLong, Placement::Common);
  // The first rank of each host writes everything; all ranks see it without a collective of data.
  if (hosts_.is_first_of_host(rank_)) common.fill_(7 + rank_);
  group_.barrier();
  EXPECT_TRUE(at::equal(common, at::full_like(common, 7 + hosts_.ranks_of(hosts_.host_of(rank_))[0])));
  group_.barrier();
  if (size_ == 1) return;
  at::Tensor tensor = common;
  EXPECT_THROW(group_.all_reduce(tensor), std::invalid_argument);
}

TEST_P(Windows, AreCountedApart) {
  HostMemory& host = HostMemory::counted();
  WindowMemory& windows = WindowMemory::counted();
  const int64_t before = host.live(), own = windows.own(), common = windows.common();
  {
    const at::Tensor a = allocate(1001, at::kFloat, Placement::Own);
    const at::Tensor b = allocate(2003, at::kDouble, Placement::Common);
    const bool really = size_ > 1 && given(Placement::Own) == Placement::Own;
    EXPECT_EQ(windows.own() - own, really ? 4004 : 0);
    EXPECT_EQ(windows.common() - common, really ? 16024 : 0);
    EXPECT_EQ(host.live() - before, really ? 0 : 4004 + 16024);
    if (size_ > 1) {
      EXPECT_EQ(windows.exchange() % HostBoard::kRankBytes, 0);
      EXPECT_TRUE(!really || windows.exchange() > 0);
    }
  }
  EXPECT_EQ(windows.own(), own);
  EXPECT_EQ(windows.common(), common);
  EXPECT_EQ(host.live(), before);
}

TEST_P(Windows, AViewKeepsItsWindow) {
  at::Tensor view = allocate(5000, at::kFloat, Placement::Own).narrow(0, 1000, 2000);
  view.fill_(1);
  group_.all_reduce(view).wait();
  EXPECT_TRUE(at::equal(view, at::full({2000}, static_cast<float>(size_))));
}

/// Sums and gathers in windows of several groups, in one random order; each rank waits at its own times.
TEST_P(Windows, ManyUnderWayOnSeveralGroups) {
  const int tp = size_ % 2 == 0 ? 2 : 1;
  const DeviceMesh mesh(MeshLayout({{"dp", size_ / tp}, {"tp", tp}}), group_);
  const std::vector<Group> groups{mesh.group("dp"), mesh.group("tp"), mesh.world(), mesh.world()};
  constexpr int64_t kLength = 20'000;
  struct Buffers {
    at::Tensor own, common, shard;
    Work work;
    double expected = 0;
    int kind = -1;
  };
  std::vector<Buffers> buffers;
  for (const Group& group : groups) {
    Buffers& buffer = buffers.emplace_back();
    buffer.own = group.allocate(kLength * group.size(), at::kDouble, Placement::Own).tensor;
    buffer.common = group.allocate(kLength * group.size(), at::kDouble, Placement::Common).tensor;
    buffer.shard = at::zeros({kLength}, at::kDouble);
  }
  std::mt19937 shared(11);
  std::mt19937 own(static_cast<unsigned>(rank_));
  const auto finish = [&](size_t i) {
    Buffers& buffer = buffers[i];
    if (buffer.kind < 0) return;
    buffer.work.wait();
    const Group& group = groups[i];
    const at::Tensor& result = buffer.kind == 0 ? buffer.own : buffer.kind == 1 ? buffer.shard : buffer.common;
    if (buffer.kind == 2) {
      for (int rank = 0; rank < group.size(); ++rank) {
        const at::Tensor part = result.narrow(0, rank * kLength, kLength);
        ASSERT_TRUE(at::equal(part, at::full_like(part, buffer.expected + group.ranks()[rank])));
      }
    } else {
      ASSERT_TRUE(at::equal(result, at::full_like(result, buffer.expected)));
    }
    buffer.kind = -1;
  };
  for (int round = 0; round < 300; ++round) {
    const size_t i = shared() % groups.size();
    const int kind = static_cast<int>(shared() % 3);
    const Group& group = groups[i];
    Buffers& buffer = buffers[i];
    finish(i);
    double sum = 0;
    for (const int64_t rank : group.ranks()) sum += round + static_cast<double>(rank);
    const double mine = round + static_cast<double>(group.ranks()[group.rank()]);
    buffer.kind = kind;
    buffer.expected = kind == 2 ? round : sum;
    if (kind == 2) {
      group.barrier();  // nobody still reads the last gather
      at::Tensor part = buffer.common.narrow(0, group.rank() * kLength, kLength);
      part.fill_(mine);
      buffer.work = group.all_gather(buffer.common, part);
    } else {
      buffer.own.fill_(mine);
      buffer.work = kind == 0 ? group.all_reduce(buffer.own) : group.reduce_scatter(buffer.shard, buffer.own);
    }
    if (own() % 4 == 0) finish(own() % groups.size());
  }
  for (size_t i = 0; i < groups.size(); ++i) finish(i);
}

INSTANTIATE_TEST_SUITE_P(On, Windows,
                         ::testing::Values(Hosts::Found, Hosts::Two, Hosts::InTurn, Hosts::Each, Hosts::Refused),
                         [](const auto& tested) { return name_of(tested.param); });

TEST(WindowSpace, AGroupWithinAnotherUsesItsWindows) {
  const int size = world().size();
  if (size < 4) GTEST_SKIP() << "needs four ranks";
  at::Tensor tensor = world().allocate(300'000, at::kFloat, Placement::Own).tensor;
  tensor.fill_(world().rank());
  std::vector<int> members;
  for (int rank = world().rank() % 2; rank < size; rank += 2) members.push_back(rank);
  const Group half = world().split(members, "half");
  half.all_reduce(tensor).wait();
  double sum = 0;
  for (const int member : members) sum += member;
  EXPECT_EQ(tensor[299'999].item<float>(), sum);
}

int64_t page_table_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == "VmPTE:" && status >> kib) return kib << 10;
  }
  return -1;
}

/// 8 bytes per page that a rank touches: its own part and, in each collective, a slice of the others' parts.
TEST(WindowSpace, TakesPageTablesForWhatARankTouches) {
  if (world().size() < 4 || ranks_per_host() < world().size()) GTEST_SKIP() << "needs several ranks on a host";
  const Watchdog watchdog{kWindowSeconds};
  const int64_t bytes = 32 << 20, before = page_table_bytes();
  ASSERT_GE(before, 0);
  at::Tensor window = world().allocate(bytes / 4, at::kFloat, Placement::Own).tensor;
  const int64_t own = bytes / 4096 * 8, spare = 64 << 10;
  EXPECT_LE(page_table_bytes() - before, own + spare);
  window.fill_(1);
  world().all_reduce(window).wait();
  EXPECT_EQ(window[-1].item<float>(), static_cast<float>(world().size()));
  // Slices of the others together have the size of the rank's own part; tables are rounded to 2 MiB.
  EXPECT_LE(page_table_bytes() - before, 2 * own + world().size() * 3 * 4096 + spare);
}

TEST(WindowSpace, PassesThroughWhatDecoratesABackend) {
  const auto ledger = std::make_shared<TrafficLedger>();
  const Group counted(instrument(world().backend(), ledger), "counted", world().ranks(), world().coordinate_text());
  for (const Group& group : {counted, skip_sums(counted, "nothing")}) {
    EXPECT_EQ(group.allocate(10, at::kFloat, Placement::Common).placement, Placement::Common);
  }
  EXPECT_EQ(ledger->total().calls, 0);
}

TEST(WindowSpace, OfADryRunIsOrdinary) {
  const Group dry(dry_run_backend(0, 4), "dry", {0, 1, 2, 3}, "rank 0");
  const GroupMemory memory = dry.allocate(10, at::TensorOptions(at::kFloat).device(at::kMeta), Placement::Common);
  EXPECT_EQ(memory.placement, Placement::Private);
  EXPECT_TRUE(memory.tensor.is_meta());
}

TEST(TwoHosts, DISABLED_AreFound) {
  EXPECT_EQ(world().size(), 4);
  EXPECT_EQ(ranks_per_host(), 2);
}

/// Over TCP, between two network namespaces.
TEST(TwoHosts, PassTheSameTests) {
  if (world().size() > 1) GTEST_SKIP() << "starts an mpirun of its own";
  const testing::Outcome outcome = testing::run(
      "timeout 300 '" + testing::source_folder() + "/tests/support/two_hosts' " + testing::this_program() +
      " --gtest_also_run_disabled_tests "
      "--gtest_filter='TwoHosts.DISABLED_*:On/Windows.*/hosts_as_found:CollectiveArithmetic.*-*SumsInTheOrder*'");
  if (outcome.status == 77) GTEST_SKIP() << outcome.output;
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("[  PASSED  ]"), std::string::npos) << outcome.output;
}

TEST(HostLayout, TakesRegularGroupsTogether) {
  const auto expect = [](const std::vector<int>& hosts_of_ranks, int rank, int hosts, int host, int local_size,
                         int local_rank) {
    const HostLayout layout = HostLayout::of(hosts_of_ranks, rank);
    EXPECT_EQ(layout.hosts, hosts);
    EXPECT_EQ(layout.host, host);
    EXPECT_EQ(layout.local_size, local_size);
    EXPECT_EQ(layout.local_rank, local_rank);
  };
  expect({0, 0, 0, 0}, 2, 1, 0, 4, 2);
  expect({0, 0, 2, 2, 4, 4}, 3, 3, 1, 2, 1);
  expect({4, 4, 0, 0}, 1, 2, 0, 2, 1);
  expect({0, 0, 2, 2, 2}, 4, 5, 4, 1, 0);  // other numbers
  expect({0, 0, 0, 3, 3, 3, 3}, 4, 7, 4, 1, 0);
  expect({0, 0, 1, 1, 0, 0}, 5, 6, 5, 1, 0);
  expect({5, 1, 5, 1}, 2, 2, 0, 2, 1);  // in turn
  expect({0, 1, 1, 0, 0, 1}, 3, 2, 0, 3, 1);
  EXPECT_EQ(HostLayout::of({0, 1, 1, 0, 0, 1}, 3).ranks, (std::vector<int>{0, 3, 4, 1, 2, 5}));
}

TEST(HostLayout, NumbersTheOrderOfSums) {
  const auto order = [](const std::vector<int>& hosts_of_ranks) {
    return HostLayout::of(hosts_of_ranks, 0).order(/*fan_out=*/4);
  };
  for (const std::vector<int>& ordered : {std::vector<int>{0, 0, 0, 0}, {0, 1, 2, 3}, {0, 1, 1, 1}}) {
    EXPECT_EQ(order(ordered), 0U);
  }
  EXPECT_NE(order({0, 0, 0, 0, 0}), 0U);  // a host sums in the order of ranks, messages by runs of four
  EXPECT_EQ(order({0, 0, 1, 1}), order({7, 7, 3, 3}));
  EXPECT_NE(order({0, 0, 1, 1}), 0U);
  EXPECT_NE(order({0, 0, 1, 1}), order({0, 1, 0, 1}));
  EXPECT_NE(order({0, 0, 1, 1, 2, 2, 3, 3}), order({0, 0, 0, 0, 1, 1, 1, 1}));
}

}  // namespace
}  // namespace meshtrain
