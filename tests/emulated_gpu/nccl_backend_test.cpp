// Groups over NCCL: queues that do not wait for each other, a host that does not poll, and limits that end waits.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "mesh/backends/nccl/nccl.h"
#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "mesh/device_mesh.h"
#include "mesh/link.h"
#include "tests/emulated_gpu/cuda/streams.h"
#include "tests/emulated_gpu/nccl/communicator.h"
#include "tests/gpu/reference.h"
#include "tests/support/load.h"
#include "tests/support/world.h"

namespace meshtrain {
namespace {

using namespace std::chrono_literals;
using testing::gpu;
using testing::world;

class EmulatedNcclBackend : public ::testing::Test {
 protected:
  static Group connect(const NcclOptions& options = {}) {
    const auto backend = connect_nccl(world().backend(), options);
    return Group(backend, "dp", world().ranks(), world().coordinate_text());
  }

  static at::Tensor zeros(int64_t numel) { return at::zeros({numel}, at::TensorOptions(gpu())); }

  /// Returns the message that `work` throws.
  static std::string message_of(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  void TearDown() override {
    unsetenv("MESHTRAIN_EMULATED_NCCL_ABSENT");
    unsetenv("MESHTRAIN_EMULATED_NCCL_NO_WINDOWS");
    unsetenv("NCCL_COMM_BLOCKING");
  }

  const int size_ = world().size();
};

TEST_F(EmulatedNcclBackend, AGatherPassesAReductionThatIsLate) {
  const Group reductions = connect({.two_queues = true}), gathers = reductions.second_queue();
  at::Tensor full = zeros(4 * size_), shard = zeros(4), gathered = zeros(4 * size_);
  wait_for_stream(gpu());  // the zeros are written before another stream fills `full`
  std::atomic<bool> goes_on = false;
  const c10::impl::VirtualGuardImpl streams(at::kCUDA);
  const c10::Stream slow = streams.getStreamFromGlobalPool(gpu()), current = streams.getStream(gpu());
  for (const bool first : {true, false}) {  // the first call connects the queues
    goes_on = first;
    Work reduction;
    {
      const c10::StreamGuard on_slow(slow);
      emulated::give(static_cast<cudaStream_t>(slow.native_handle()),
                     [&] { EXPECT_TRUE(testing::wait_until([&] { return goes_on.load(); }, 60s)); });
      full.fill_(1);
      reduction = reductions.reduce_scatter(shard, full);
    }
    const at::Tensor mine = at::full({4}, world().rank() + 1.0, gathered.options());
    gathers.all_gather(gathered, mine).wait();
    EXPECT_TRUE(testing::wait_until([&] { return current.query(); }, 30s)) << "the gather waits after the reduction";
    goes_on = true;
    reduction.wait();
    EXPECT_EQ(shard.sum().item<double>(), 4.0 * size_);
    EXPECT_EQ(gathered.sum().item<double>(), 2.0 * size_ * (size_ + 1));
    world().barrier();
  }
}

TEST_F(EmulatedNcclBackend, ASecondQueueIsOfTheSameRanksAndCountedWithTheFirst) {
  if (size_ < 2) GTEST_SKIP() << "one rank has nothing to gather";
  const DeviceMesh mesh(MeshLayout({{"dp", size_}, {"cp", 1}, {"tp", 1}}), connect());
  const Group& first = mesh.group("dp");
  const Group second = first.second_queue();
  EXPECT_NE(second.backend(), first.backend());
  EXPECT_EQ(second.ranks(), first.ranks());
  mesh.traffic().clear();
  at::Tensor gathered = zeros(size_);
  second.all_gather(gathered, zeros(1)).wait();
  EXPECT_EQ(mesh.traffic().total("dp").calls, 1);
}

TEST_F(EmulatedNcclBackend, TheHostDoesNotPoll) {
  const uint64_t before = ncclEmulatedPolls();
  const Group group = connect(), other = group.second_queue();
  at::Tensor tensor = zeros(1000);
  for (int turn = 0; turn < 10; ++turn) {
    group.all_reduce(tensor).wait();
    other.broadcast(tensor, 0).wait();
  }
  EXPECT_EQ(tensor.sum().item<double>(), 0);
  EXPECT_EQ(ncclEmulatedPolls(), before);
}

// A communicator is not freed during a call (the emulation would end the process): the first collective of a
// communicator waits for its peers during the call, later ones wait on the stream.
TEST_F(EmulatedNcclBackend, ACollectiveThatARankDoesNotComeToEndsWithinTheLimit) {
  if (size_ < 2) GTEST_SKIP() << "one rank waits for nobody";
  for (const bool connected : {false, true}) {
    const Group group = connect({.collective_limit = 1s}), other = group.second_queue();
    at::Tensor tensor = zeros(100000);  // more than is in transit when a rank ends
    other.all_reduce(tensor).wait();
    if (connected) group.all_reduce(tensor).wait();
    wait_for_stream(gpu());
    world().barrier();
    const auto begin = std::chrono::steady_clock::now();
    const auto fail = [&] {
      group.all_reduce(tensor).wait();
      testing::wait_until([&] { return !message_of([&] { group.check(); }).empty(); });
      group.check();
    };
    std::string message;
    if (world().rank() != 0) message = message_of(fail);
    world().barrier();
    if (world().rank() == 0) message = message_of(fail);
    EXPECT_TRUE(has(message, "rank " + std::to_string(world().rank()))) << message;
    EXPECT_TRUE(has(message, "all_reduce on group dp")) << message;
    EXPECT_TRUE(has(message, "NCCL: not complete 1 s after it was issued: another rank did not reach it")) << message;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::within(10s));
    EXPECT_EQ(message_of([&] { other.all_reduce(tensor); }), message) << "all groups fail together";
    world().barrier();
  }
}

TEST_F(EmulatedNcclBackend, ARankThatDoesNotConnectIsReportedAfterTheLimit) {
  if (size_ < 2) GTEST_SKIP() << "one rank is there";
  const std::string absent = std::to_string(size_ - 1);
  setenv("MESHTRAIN_EMULATED_NCCL_ABSENT", (absent + ":world").c_str(), 1);
  const auto begin = std::chrono::steady_clock::now();
  const std::string world_message = message_of([] { connect({.connect_limit = 1s}); });
  EXPECT_TRUE(
      has(world_message, "communicator of group world: no connection within 1 s: set NCCL_DEBUG=INFO for details"))
      << world_message;

  setenv("MESHTRAIN_EMULATED_NCCL_ABSENT", (absent + ":world.2").c_str(), 1);
  const Group group = connect({.connect_limit = 1s});
  const std::string message = message_of([&] { group.second_queue(); });
  EXPECT_TRUE(has(message, "communicator of group world.2: no connection within 1 s")) << message;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, testing::within(15s));
  EXPECT_TRUE(has(message_of([&] { group.check(); }), "communicator of group world.2: no connection within 1 s"));
}

TEST_F(EmulatedNcclBackend, CommunicatorsThatDoNotBlockAreRefused) {
  setenv("NCCL_COMM_BLOCKING", "0", 1);
  const std::string message = message_of([] { connect(); });
  EXPECT_TRUE(has(message, "communicators are non-blocking: unset NCCL_COMM_BLOCKING")) << message;
}

TEST_F(EmulatedNcclBackend, ASymmetricWindowIsUsedAtOnePlaceOfAllRanks) {
  if (size_ < 2) GTEST_SKIP() << "one rank has one offset";
  const Group group = connect({.user_buffers = NcclBuffers::Symmetric});
  at::Tensor window = group.window(1000, at::TensorOptions(gpu()), Placement::Own);
  window.fill_(1);
  at::Tensor part = window.narrow(0, 100, 50);
  group.all_reduce(part).wait();
  EXPECT_EQ(window.sum().item<double>(), 950.0 + 50.0 * size_);
  world().barrier();
  at::Tensor elsewhere = window.narrow(0, world().rank() == 0 ? 0 : 4, 50);
  const std::string message = message_of([&] {
    group.all_reduce(elsewhere).wait();
    testing::wait_until([&] { return !message_of([&] { group.check(); }).empty(); });
    group.check();
  });
  EXPECT_TRUE(has(message, "NCCL: invalid usage") || has(message, "remote process exited")) << message;
  world().barrier();
}

TEST_F(EmulatedNcclBackend, ARefusedWindowSaysWhatToTryNext) {
  if (size_ < 2) GTEST_SKIP() << "one rank has no communicator";
  setenv("MESHTRAIN_EMULATED_NCCL_NO_WINDOWS", "1", 1);
  const auto message = [&](NcclBuffers buffers) {
    const Group group = connect({.user_buffers = buffers});
    at::Tensor window = group.window(1000, at::TensorOptions(gpu()), Placement::Own);
    const std::string found = message_of([&] { group.all_reduce(window).wait(); });
    wait_for_stream(gpu());
    world().barrier();
    return found;
  };
  EXPECT_EQ(message(NcclBuffers::Registered), "");
  const std::string found = message(NcclBuffers::Symmetric);
  EXPECT_TRUE(has(found, "all_reduce on group dp")) << found;
  EXPECT_TRUE(has(found, "symmetric try NCCL_LAUNCH_ORDER_IMPLICIT=0 first, then registered")) << found;
}

// Both directions at once, each with a communicator and a stream of its own: neither waits for the other.
TEST_F(EmulatedNcclBackend, LinksCarryMessagesInBothDirections) {
  if (size_ < 2) GTEST_SKIP() << "one rank has no link";
  const Group group = connect();
  const Link away(group, 0, size_ - 1), back(group, size_ - 1, 0);
  const int rank = world().rank();
  if (rank != 0 && rank != size_ - 1) return;
  const Link &mine = rank == 0 ? away : back, &theirs = rank == 0 ? back : away;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor sent = zeros(100'000).fill_(10 * rank + i);
    at::Tensor received = zeros(100'000);
    const Work work = mine.send(sent);
    theirs.receive(received).wait();
    work.wait();
    EXPECT_EQ(received.sum().item<double>(), 100'000.0 * (10 * (size_ - 1 - rank) + i));
  }
}

// Ranks that differ along tp may have different windows.
TEST_F(EmulatedNcclBackend, AWindowIsSymmetricAmongTheRanksThatMadeIt) {
  if (size_ != 4) GTEST_SKIP() << "four ranks have two axes";
  const MeshLayout layout({{"dp", 2}, {"tp", 2}});
  const NcclOptions options{.user_buffers = NcclBuffers::Symmetric};
  const auto backend = connect_nccl(world().backend(), options);
  const DeviceMesh mesh(layout, Group(backend, "world", world().ranks(), world().coordinate_text()));
  const int64_t numel = 1000 + 100 * mesh.coordinate("tp");
  at::Tensor window = mesh.group("dp").window(numel, at::TensorOptions(gpu()), Placement::Own);
  window.fill_(1);
  mesh.group("dp").all_reduce(window).wait();
  at::Tensor last = window.narrow(0, numel - 500, 500);
  mesh.group("tp").all_reduce(last).wait();
  EXPECT_EQ(window.sum().item<double>(), 2.0 * static_cast<double>(numel - 500) + 4.0 * 500);
}

}  // namespace
}  // namespace meshtrain
