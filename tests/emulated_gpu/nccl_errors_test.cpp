// Calls that the emulated NCCL refuses, and its failures.
#include "tests/emulated_gpu/nccl_fixture.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/emulated_gpu/cuda/streams.h"
#include "tests/emulated_gpu/nccl/communicator.h"

namespace meshtrain::emulated {
namespace {

TEST_F(EmulatedNccl, RefusesWhatIsWrong) {
  Buffer data(64);
  std::vector<float> host(16);
  const auto sum = [&](void* from, void* to, size_t count) {
    return ncclAllReduce(from, to, count, ncclFloat32, ncclSum, comm_, stream_);
  };
  EXPECT_EQ(sum(host.data(), host.data(), 16), ncclInvalidArgument);
  EXPECT_EQ(sum(nullptr, data.get(), 16), ncclInvalidArgument);
  EXPECT_EQ(sum(data.get(), data.get(), 17), ncclInvalidArgument);
  EXPECT_EQ(sum(data.get(), data.get() + 4, 8), ncclInvalidUsage);
  EXPECT_EQ(ncclSend(data.get(), 1, ncclFloat32, size(), comm_, stream_), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(comm_)).find("send"), std::string::npos);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(sum(nullptr, data.get(), 16), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  expect_success(sum(nullptr, nullptr, 0));
  if (size() > 1) {
    ASSERT_EQ(cudaSetDevice(next()), cudaSuccess);
    EXPECT_EQ(sum(data.get(), data.get(), 1), ncclInvalidUsage);
    ASSERT_EQ(cudaSetDevice(rank()), cudaSuccess);
  }
  std::atomic<bool> asked = false;
  give(stream_, [&] {
    while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  expect_success(sum(data.get(), data.get(), 1));
  ncclComm_t part = nullptr;
  EXPECT_EQ(ncclCommSplit(comm_, 0, 0, &part, nullptr), ncclInvalidUsage);  // because that is in progress
  asked = true;
  synchronize();
}

TEST_F(EmulatedNccl, IsNotToBeUsedWhileInProgress) {
  const ncclUniqueId id = shared_id();
  ncclComm_t comm = nullptr;
  ncclConfig_t asked = config();
  if (rank() == 0 && size() > 1) {
    ASSERT_EQ(ncclCommInitRankConfig(&comm, size(), id, rank(), &asked), ncclInProgress);
    int count = 0;
    EXPECT_EQ(ncclCommCount(comm, &count), ncclInvalidUsage);
  }
  world().barrier();
  if (comm == nullptr) ncclCommInitRankConfig(&comm, size(), id, rank(), &asked);
  ASSERT_EQ(settle(comm), ncclSuccess);
  finish(comm);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
}

TEST_F(EmulatedNccl, GivesUpAConnection) {
  ncclUniqueId id{};
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  ncclConfig_t asked = config();
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &asked), ncclInProgress);  // no other rank will take part
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}

TEST_F(EmulatedNccl, RefusesOneGpuForTwoRanks) {
  if (size() < 2) GTEST_SKIP() << "one rank has a GPU of its own";
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ncclComm_t comm = nullptr;
  ncclConfig_t asked = config();
  const ncclResult_t result = ncclCommInitRankConfig(&comm, size(), shared_id(), rank(), &asked);
  EXPECT_EQ(settle(result, comm), ncclInvalidUsage);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  ASSERT_EQ(cudaSetDevice(rank()), cudaSuccess);
}

TEST_F(EmulatedNccl, FindsOperationsThatDoNotAgree) {
  if (size() < 2) GTEST_SKIP() << "one rank agrees with itself";
  Buffer data(64);
  const size_t count = rank() == 0 ? 16 : 15;
  expect_begun(ncclAllReduce(data.get(), data.get(), count, ncclFloat32, ncclSum, comm_, stream_));
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess || state == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(comm_, &state), ncclSuccess);
  EXPECT_TRUE(state == ncclInvalidUsage || state == ncclRemoteError);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);  // it hangs, like a kernel
  EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);
  synchronize();
  comm_ = nullptr;
  world().barrier();
}

TEST_F(EmulatedNccl, FailsWhereItIsAskedTo) {
  const int failing = size() - 1;
  world().barrier();
  setenv("MESHTRAIN_EMULATED_NCCL_FAIL", (std::to_string(failing) + ":2").c_str(), 1);
  Buffer data(4);
  data.fill<float>([](size_t) { return 1; });
  expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, comm_, stream_));
  synchronize();
  data.expect<float>([&](size_t) { return size(); });
  expect_begun(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, comm_, stream_));
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess || state == ncclInProgress) ASSERT_EQ(ncclCommGetAsyncError(comm_, &state), ncclSuccess);
  EXPECT_EQ(state, rank() == failing ? ncclSystemError : ncclRemoteError);
  unsetenv("MESHTRAIN_EMULATED_NCCL_FAIL");
  EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);
  synchronize();
  comm_ = nullptr;
  world().barrier();
}

TEST_F(EmulatedNccl, AbortsHangingCommunicatorsTogether) {
  if (size() < 2) GTEST_SKIP() << "one rank waits for nobody";
  ncclComm_t other = connect();
  cudaStream_t other_stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking), cudaSuccess);
  Buffer data(8);
  if (rank() != 0) {  // rank 0 does not take part
    expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, comm_, stream_));
    EXPECT_EQ(
        settle(ncclAllReduce(data.get() + 4, data.get() + 4, 1, ncclFloat32, ncclSum, other, other_stream), other),
        ncclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  }
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(other), ncclSuccess);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  synchronize();
  EXPECT_EQ(ncclCommAbort(other), ncclInvalidArgument);
  EXPECT_EQ(cudaStreamDestroy(other_stream), cudaSuccess);
  comm_ = nullptr;
  world().barrier();
}

// An abort frees memory of the device, and so waits for its work (NCCL's issue 1013).
TEST_F(EmulatedNccl, AbortsNoneAloneWhileAnotherHangs) {
  if (size() < 2) GTEST_SKIP() << "one rank waits for nobody";
  ncclComm_t other = connect();
  cudaStream_t other_stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking), cudaSuccess);
  Buffer data(8);
  if (rank() != 0) {
    expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, comm_, stream_));
    auto* const second = data.get() + 4;
    EXPECT_EQ(settle(ncclAllReduce(second, second, 1, ncclFloat32, ncclSum, other, other_stream), other), ncclSuccess);
  }
  std::atomic<bool> is_done = false;
  std::thread first([&] {
    EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);
    is_done = true;
  });
  if (rank() != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(is_done);
  }
  EXPECT_EQ(ncclCommAbort(other), ncclSuccess);
  first.join();
  EXPECT_EQ(cudaStreamDestroy(other_stream), cudaSuccess);
  comm_ = nullptr;
  world().barrier();
}

TEST_F(EmulatedNccl, RegistersItsOwnMemoryOnly) {
  Buffer other(4096);
  void* memory = nullptr;
  void* handle = nullptr;
  ncclWindow_t window = nullptr;
  ASSERT_EQ(ncclMemAlloc(&memory, 8192), ncclSuccess);
  EXPECT_EQ(ncclCommRegister(comm_, other.get(), 4096, &handle), ncclInvalidArgument);
  EXPECT_EQ(ncclCommRegister(comm_, memory, 8193, &handle), ncclInvalidArgument);
  ASSERT_EQ(ncclCommRegister(comm_, memory, 4096, &handle), ncclSuccess);
  EXPECT_EQ(ncclMemFree(memory), ncclInvalidUsage);
  expect_success(ncclCommWindowRegister(comm_, memory, 8192, &window, NCCL_WIN_COLL_SYMMETRIC));
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(ncclCommDeregister(comm_, handle), ncclSuccess);
  EXPECT_EQ(ncclCommDeregister(comm_, handle), ncclInvalidUsage);
  EXPECT_EQ(ncclMemFree(memory), ncclInvalidUsage);
  EXPECT_EQ(ncclCommWindowDeregister(comm_, window), ncclSuccess);
  EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
  EXPECT_EQ(ncclMemFree(memory), ncclInvalidUsage);
}

TEST_F(EmulatedNccl, IsStrictAboutWindows) {
  void* memory = nullptr;
  void* handle = nullptr;
  ncclWindow_t window = nullptr, second = nullptr;
  ASSERT_EQ(ncclMemAlloc(&memory, 8192), ncclSuccess);
  const auto enter = [&](ncclWindow_t* made) {
    expect_success(ncclCommWindowRegister(comm_, memory, 4096, made, NCCL_WIN_COLL_SYMMETRIC));
  };
  enter(&window);
  const auto sum = [&](size_t offset) {
    std::byte* const data = static_cast<std::byte*>(memory) + offset;
    return ncclAllReduce(data, data, 16, ncclFloat32, ncclSum, comm_, stream_);
  };
  expect_success(sum(4032));
  synchronize();
  EXPECT_EQ(sum(4036), ncclInvalidArgument) << "it leaves the window";
  ncclResult_t again = ncclCommWindowRegister(comm_, memory, 4096, &second, NCCL_WIN_COLL_SYMMETRIC);
  if (again == ncclInProgress) again = settle(comm_);
  EXPECT_EQ(again, ncclInvalidUsage) << "it lies in a window";
  EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);
  comm_ = connect();
  EXPECT_EQ(ncclCommWindowDeregister(comm_, window), ncclInvalidUsage) << "of another communicator";
  enter(&window);
  ASSERT_EQ(ncclCommRegister(comm_, memory, 8192, &handle), ncclSuccess);
  EXPECT_EQ(ncclCommDeregister(comm_, window), ncclInvalidUsage);
  EXPECT_EQ(ncclCommWindowDeregister(comm_, static_cast<ncclWindow_t>(handle)), ncclInvalidUsage);
  EXPECT_EQ(ncclCommDeregister(comm_, handle), ncclSuccess);
  EXPECT_EQ(ncclCommFinalize(comm_), ncclInvalidUsage) << "with a window";
  EXPECT_EQ(ncclCommWindowDeregister(comm_, window), ncclSuccess);
  EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
}

TEST_F(EmulatedNccl, HasAllRanksRegisterTheSameWindow) {
  if (size() < 2) GTEST_SKIP() << "one rank agrees with itself";
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  ASSERT_EQ(ncclMemAlloc(&memory, 8192), ncclSuccess);
  const ncclResult_t result =
      ncclCommWindowRegister(comm_, memory, rank() == 0 ? 4096 : 8192, &window, NCCL_WIN_COLL_SYMMETRIC);
  EXPECT_EQ(settle(result, comm_), ncclInvalidUsage);
  EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);
  comm_ = nullptr;
  EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
  world().barrier();
}

TEST_F(EmulatedNccl, MixesNoCommunicatorsThatBlockWithOthers) {
  ncclComm_t blocking = nullptr;
  ncclConfig_t asked = NCCL_CONFIG_INITIALIZER;
  expect_success(ncclCommSplit(comm_, 0, rank(), &blocking, &asked));  // blocks like its parent
  ASSERT_NE(blocking, nullptr);
  Buffer data(8);
  EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, blocking, stream_), ncclSuccess);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, blocking, stream_), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(data.get() + 4, data.get() + 4, 1, ncclFloat32, ncclSum, comm_, stream_), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  synchronize();
  EXPECT_EQ(ncclCommFinalize(blocking), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(blocking), ncclSuccess);
}

TEST_F(EmulatedNccl, HasAllRanksRegisterOrNone) {
  void* memory = nullptr;
  void* handle = nullptr;
  ASSERT_EQ(ncclMemAlloc(&memory, 4096), ncclSuccess);
  if (rank() == 0) {
    ASSERT_EQ(ncclCommRegister(comm_, memory, 4096, &handle), ncclSuccess);
  }
  expect_begun(ncclAllReduce(memory, memory, 16, ncclFloat32, ncclSum, comm_, stream_));
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress || (state == ncclSuccess && size() > 1)) {
    ASSERT_EQ(ncclCommGetAsyncError(comm_, &state), ncclSuccess);
  }
  EXPECT_TRUE(state == (size() > 1 ? ncclInvalidUsage : ncclSuccess) || (size() > 1 && state == ncclRemoteError));
  EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);  // and what it has registered is forgotten
  synchronize();
  EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
  comm_ = nullptr;
  world().barrier();
}

}  // namespace
}  // namespace meshtrain::emulated
