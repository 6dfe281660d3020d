// Collectives of different groups run concurrently and without calls from the user.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "tests/mesh/worlds.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using testing::Watchdog;
using testing::world;
using testing::world_again;

constexpr int kSeconds = 60;

/// A signal between ranks without MPI: a file that one rank creates and others look for.
class Signal {
 public:
  explicit Signal(const std::filesystem::path& path) : path_(path) {}
  void raise() const { std::filesystem::create_directory(path_); }
  bool raised() const { return std::filesystem::exists(path_); }
  void wait() const {
    while (!raised()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  std::filesystem::path path_;
};

class Concurrency : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "needs several ranks";
  }
};

TEST_F(Concurrency, ALongReductionDoesNotDelayAShortOneOfAnotherGroup) {
  const Group first = world_again("first");
  const Group second = world_again("second");
  const Watchdog watchdog(kSeconds);
  at::Tensor large = at::full({16 << 20}, 1.0f);  // 64 MiB
  at::Tensor small = at::full({1 << 18}, 1.0f);   // small, but more than one message
  const auto check = [&] {
    EXPECT_EQ(small[-1].item<float>(), world().size());
    EXPECT_EQ(large[0].item<float>(), world().size());
    EXPECT_EQ(large[-1].item<float>(), world().size());
  };
  // Rank 0 starts the long one first, the others start it only after the short one is complete. If the short one had to
  // wait for the long one, no rank would continue.
  if (world().rank() == 0) {
    const Work long_work = first.all_reduce(large);
    second.all_reduce(small).wait();
    long_work.wait();
  } else {
    second.all_reduce(small).wait();
    first.all_reduce(large).wait();
  }
  check();
}

TEST_F(Concurrency, RanksMayWaitInOrdersOfTheirOwn) {
  const std::vector<Group> groups{world_again("a"), world_again("b"), world_again("c")};
  const Watchdog watchdog(kSeconds);
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int round = 0; round < 5; ++round) {
    for (const Group& group : groups) {
      tensors.push_back(at::full({1 << 18}, 1.0));
      works.push_back(group.all_reduce(tensors.back()));
    }
  }
  std::vector<size_t> order(works.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937 random(static_cast<unsigned>(world().rank()));
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    works[i].wait();
    EXPECT_EQ(tensors[i][-1].item<double>(), world().size());
  }
}

TEST_F(Concurrency, CollectivesAdvanceWhileTheCallerComputes) {
  const testing::ScratchFolder folder(world());
  const Signal done(folder.path() / "done");
  const Watchdog watchdog(kSeconds);
  at::Tensor tensor = at::full({4 << 20}, 1.0f);
  const Work work = world().all_reduce(tensor);
  // The last rank makes no call until all other ranks have their result.
  if (world().rank() == world().size() - 1) {
    done.wait();
  } else {
    work.wait();
    if (world().rank() == 0) done.raise();
  }
  work.wait();
  EXPECT_EQ(tensor[0].item<float>(), world().size());
}

TEST_F(Concurrency, TensorsAreHeldUntilDoneAndNoLonger) {
  const testing::ScratchFolder folder(world());
  const Signal checked(folder.path() / "checked");
  const Watchdog watchdog(kSeconds);
  const Group group = world_again("held");
  if (world().rank() == 0) {
    at::Tensor tensor = at::full({1000}, 1.0);
    const c10::weak_intrusive_ptr<c10::StorageImpl> storage(tensor.storage().getWeakStorageImpl());
    const Work work = group.all_reduce(tensor);
    tensor.reset();
    EXPECT_FALSE(storage.expired());
    checked.raise();
    work.wait();
    EXPECT_TRUE(storage.expired());
  } else {
    checked.wait();
    at::Tensor tensor = at::full({1000}, 1.0);
    group.all_reduce(tensor).wait();
    EXPECT_EQ(tensor[999].item<double>(), world().size());
  }
}

TEST_F(Concurrency, WorkThatNobodyWaitsForIsDoneAllTheSame) {
  const Group group = world_again("forgotten");
  const Watchdog watchdog(kSeconds);
  at::Tensor tensor = at::full({1 << 16}, 1.0);
  for (int i = 0; i < 4; ++i) group.all_reduce(tensor);
  group.barrier();  // one queue: runs after the others
  EXPECT_EQ(tensor[77].item<double>(), std::pow(world().size(), 4));
}

TEST_F(Concurrency, ABarrierHoldsEveryRank) {
  const testing::ScratchFolder folder(world());
  const Watchdog watchdog(kSeconds);
  for (int last = 0; last < world().size(); ++last) {
    const Signal arrived(folder.path() / std::to_string(last));
    if (world().rank() == last) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      arrived.raise();
    }
    world().barrier();
    EXPECT_TRUE(arrived.raised()) << "passed before rank " << last << " came";
  }
}

TEST_F(Concurrency, SplittingFinishesWhatIsUnderWay) {
  const Watchdog watchdog(kSeconds);
  at::Tensor tensor = at::full({1 << 20}, 1.0);
  const Work work = world().all_reduce(tensor);
  // split() blocks: a rank that reaches it before the reduction is complete would keep rank 0 from reaching it.
  if (world().rank() == 0) work.wait();
  const Group again = world_again("again");
  again.barrier();
  work.wait();
  EXPECT_EQ(tensor[0].item<double>(), world().size());
}

/// Runs random collectives on all groups of a mesh, in the same random order on every rank, and waits for them at
/// random times that differ by rank.
TEST_F(Concurrency, RandomTrafficOnAllAxes) {
  const int n = world().size();
  const MeshLayout layout = MeshLayout::fit(
      {{"dp", MeshLayout::kAuto}, {"tp", n % 2 == 0 ? 2 : 1}, {"cp", n % 4 == 0 ? 2 : 1}}, {"dp", "tp", "cp"}, n);
  const DeviceMesh mesh(layout, testing::world_in_pieces(4096));
  const std::vector<Group> groups{mesh.group("dp"), mesh.group("tp"), mesh.group("cp"), mesh.group({"dp", "cp"}),
                                  mesh.world()};
  const Watchdog watchdog(2 * kSeconds);
  std::mt19937 shared(7);
  std::mt19937 own(static_cast<unsigned>(world().rank()));
  struct Pending {
    Work work;
    at::Tensor result;
    at::Tensor expected;
  };
  std::vector<Pending> pending;
  const auto check = [](const Pending& one) {
    one.work.wait();
    ASSERT_TRUE(at::equal(one.result, one.expected));
  };
  for (int i = 0; i < 400; ++i) {
    const Group& group = groups[shared() % groups.size()];
    const int64_t length = int64_t{1} << (shared() % 14);
    const int size = group.size();
    const double i_value = i;
    double sum = 0;
    for (const int64_t rank : group.ranks()) sum += i_value + static_cast<double>(rank);
    const double mine = i_value + static_cast<double>(group.ranks()[static_cast<size_t>(group.rank())]);
    at::Tensor full = at::full({size * length}, mine, at::kDouble);
    at::Tensor part = at::full({length}, mine, at::kDouble);
    switch (shared() % 3) {
      case 0:
        pending.push_back({group.all_reduce(full), full, at::full_like(full, sum)});
        break;
      case 1:
        pending.push_back({group.reduce_scatter(part, full), part, at::full_like(part, sum)});
        break;
      default: {
        at::Tensor expected = at::empty_like(full);
        for (int rank = 0; rank < size; ++rank) {
          expected.narrow(0, rank * length, length).fill_(i_value + static_cast<double>(group.ranks()[rank]));
        }
        pending.push_back({group.all_gather(full, part), full, expected});
      }
    }
    while (!pending.empty() && own() % 3 == 0) {
      const size_t chosen = own() % pending.size();
      check(pending[chosen]);
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
  }
  for (const Pending& one : pending) check(one);
}

}  // namespace
}  // namespace meshtrain
