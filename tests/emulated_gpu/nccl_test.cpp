#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulated_gpu/cuda/streams.h"
#include "tests/support/world.h"

namespace meshtrain::emulated {
namespace {

using meshtrain::testing::world;

/// Waits until `comm` has done what it was asked for.
ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (state == ncclInProgress && std::chrono::steady_clock::now() < end) {
    if (const ncclResult_t result = ncclCommGetAsyncError(comm, &state); result != ncclSuccess) return result;
    std::this_thread::yield();
  }
  return state;
}

/// `comm` may be what the call made.
ncclResult_t settle(ncclResult_t result, const ncclComm_t& comm) {
  return result == ncclInProgress ? settle(comm) : result;
}

ncclConfig_t config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

ncclUniqueId shared_id() {
  ncclUniqueId id{};
  if (world().rank() == 0) {
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  }
  at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof id)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &id, sizeof id);
  world().broadcast(bytes, 0).wait();
  std::memcpy(&id, bytes.const_data_ptr(), sizeof id);
  return id;
}

/// Bytes of NCCL on the device, to be compared on the host.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) { EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess); }
  ~Buffer() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <typename T>
  void fill(const std::function<double(size_t)>& value) {
    std::vector<T> host(bytes_ / sizeof(T));
    for (size_t index = 0; index < host.size(); ++index) host[index] = static_cast<T>(static_cast<float>(value(index)));
    EXPECT_EQ(cudaMemcpy(data_, host.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }

  template <typename T>
  void expect(const std::function<double(size_t)>& value) const {
    std::vector<T> host(bytes_ / sizeof(T));
    EXPECT_EQ(cudaMemcpy(host.data(), data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t index = 0; index < host.size(); ++index) {
      ASSERT_EQ(static_cast<double>(static_cast<float>(host[index])), value(index)) << "at " << index;
    }
  }

  std::byte* get() const { return static_cast<std::byte*>(data_); }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

class EmulatedNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
    ASSERT_GE(count, size()) << "MESHTRAIN_EMULATED_GPUS is less than the ranks";
    ASSERT_EQ(cudaSetDevice(rank()), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    comm_ = connect();
    world().barrier();  // a rank that is connected may fail, which the others would see in place of the connection
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    if (comm_ != nullptr) finish(comm_);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    cudaGetLastError();
  }

  static int rank() { return world().rank(); }
  static int size() { return world().size(); }
  static int next() { return (rank() + 1) % size(); }
  static int last() { return (rank() + size() - 1) % size(); }

  static ncclComm_t connect() {
    ncclComm_t comm = nullptr;
    ncclConfig_t asked = config();
    EXPECT_EQ(settle(ncclCommInitRankConfig(&comm, size(), shared_id(), rank(), &asked), comm), ncclSuccess);
    return comm;
  }

  static void finish(ncclComm_t comm) {
    EXPECT_EQ(settle(ncclCommFinalize(comm), comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  }

  void synchronize() { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }
  /// Of a call whose operation fails, maybe before this thread looks.
  static void expect_begun(ncclResult_t result) { EXPECT_TRUE(result == ncclSuccess || result == ncclInProgress); }
  void expect_success(ncclResult_t result) { EXPECT_EQ(settle(result, comm_), ncclSuccess); }

  /// All collectives, on more than a mailbox holds.
  template <typename T>
  void check_collectives(ncclDataType_t type) {
    const size_t ranks = static_cast<size_t>(size()), mine = static_cast<size_t>(rank()), count = 70001,
                 bytes = count * sizeof(T);
    const auto of = [](size_t owner, size_t index) { return static_cast<double>((index * 7 + owner * 3) % 11); };
    const auto sum = [&](size_t index) {
      double total = 0;
      for (size_t owner = 0; owner < ranks; ++owner) total += of(owner, index);
      return total;
    };
    const auto most = [&](size_t index) {
      double value = 0;
      for (size_t owner = 0; owner < ranks; ++owner) value = std::max(value, of(owner, index));
      return value;
    };
    const Buffer part(bytes), whole(bytes * ranks);
    void* const my_part = whole.get() + mine * bytes;
    const auto fill = [&](const Buffer& buffer) {
      const_cast<Buffer&>(buffer).fill<T>([&](size_t i) { return of(mine, i); });
    };

    fill(part);
    expect_success(ncclAllReduce(part.get(), part.get(), count, type, ncclSum, comm_, stream_));
    synchronize();
    part.expect<T>(sum);

    fill(part);
    expect_success(ncclAllReduce(part.get(), part.get(), count, type, ncclMax, comm_, stream_));
    synchronize();
    part.expect<T>(most);

    fill(part);
    expect_success(ncclAllGather(part.get(), whole.get(), count, type, comm_, stream_));
    synchronize();
    whole.expect<T>([&](size_t index) { return of(index / count, index % count); });

    fill(whole);
    expect_success(ncclReduceScatter(whole.get(), my_part, count, type, ncclSum, comm_, stream_));
    expect_success(ncclAllGather(my_part, whole.get(), count, type, comm_, stream_));
    synchronize();
    whole.expect<T>(sum);

    const int root = size() - 1;
    fill(part);
    expect_success(ncclBroadcast(part.get(), part.get(), count, type, root, comm_, stream_));
    synchronize();
    part.expect<T>([&](size_t index) { return of(static_cast<size_t>(root), index); });

    fill(part);
    expect_success(ncclReduce(part.get(), part.get(), count, type, ncclSum, root, comm_, stream_));
    synchronize();
    part.expect<T>([&](size_t index) { return rank() == root ? sum(index) : of(mine, index); });

    // Around the ring, both directions at once.
    fill(part);
    expect_success(ncclGroupStart());
    EXPECT_EQ(ncclSend(part.get(), count, type, next(), comm_, stream_), ncclSuccess);
    EXPECT_EQ(ncclRecv(whole.get(), count, type, last(), comm_, stream_), ncclSuccess);
    expect_success(ncclGroupEnd());
    EXPECT_EQ(cudaMemcpyAsync(part.get(), whole.get(), bytes, cudaMemcpyDeviceToDevice, stream_), cudaSuccess);
    synchronize();
    part.expect<T>([&](size_t index) { return of(static_cast<size_t>(last()), index); });
  }

  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

TEST_F(EmulatedNccl, MovesFloats) {
  check_collectives<float>(ncclFloat32);
  check_collectives<double>(ncclFloat64);
  check_collectives<__half>(ncclFloat16);
  check_collectives<__nv_bfloat16>(ncclBfloat16);
}

TEST_F(EmulatedNccl, MovesIntegers) {
  check_collectives<int8_t>(ncclInt8);
  check_collectives<uint8_t>(ncclUint8);
  check_collectives<int32_t>(ncclInt32);
  check_collectives<int64_t>(ncclInt64);
}

TEST_F(EmulatedNccl, AddsUpShortFloatsInFp32) {
  if (size() < 2) GTEST_SKIP() << "one rank adds nothing";
  const Buffer data(2);
  // 256 + 1 is no bf16; 256 + 1 + 1 is.
  const_cast<Buffer&>(data).fill<__nv_bfloat16>([&](size_t) { return rank() == 0 ? 256.0 : 1.0; });
  expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclBfloat16, ncclSum, comm_, stream_));
  synchronize();
  const float expected = static_cast<float>(static_cast<__nv_bfloat16>(256.0f + static_cast<float>(size() - 1)));
  data.expect<__nv_bfloat16>([&](size_t) { return expected; });
}

TEST_F(EmulatedNccl, RunsLate) {
  Buffer data(4);
  data.fill<float>([](size_t) { return 1; });
  give(stream_, [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
  expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, comm_, stream_));
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  synchronize();
  data.expect<float>([&](size_t) { return size(); });
}

TEST_F(EmulatedNccl, DoesGroupsWithoutDeadlock) {
  const size_t count = 200000;
  Buffer from(4 * count * static_cast<size_t>(size())), to(4 * count * static_cast<size_t>(size()));
  from.fill<float>([&](size_t index) { return static_cast<double>(rank()) + static_cast<double>(index / count); });
  expect_success(ncclGroupStart());
  for (int peer = 0; peer < size(); ++peer) {  // oneself, too; all sends before all receives
    EXPECT_EQ(ncclSend(from.get() + 4 * count * static_cast<size_t>(peer), count, ncclFloat32, peer, comm_, stream_),
              ncclSuccess);
  }
  for (int peer = size() - 1; peer >= 0; --peer) {
    EXPECT_EQ(ncclRecv(to.get() + 4 * count * static_cast<size_t>(peer), count, ncclFloat32, peer, comm_, stream_),
              ncclSuccess);
  }
  expect_success(ncclGroupEnd());
  synchronize();
  to.expect<float>([&](size_t index) { return static_cast<double>(index / count) + rank(); });
}

TEST_F(EmulatedNccl, SplitsByColorAndKey) {
  const int color = rank() % 2;
  ncclComm_t part = nullptr, none = comm_;
  ncclConfig_t asked = config();
  expect_success(ncclCommSplit(comm_, color, -rank(), &part, &asked));
  ASSERT_NE(part, nullptr);
  ASSERT_EQ(settle(part), ncclSuccess);
  int count = 0, part_rank = -1, device = -1;
  ASSERT_EQ(ncclCommCount(part, &count), ncclSuccess);
  ASSERT_EQ(ncclCommUserRank(part, &part_rank), ncclSuccess);
  ASSERT_EQ(ncclCommCuDevice(part, &device), ncclSuccess);
  EXPECT_EQ(count, (size() - color + 1) / 2);
  EXPECT_EQ(part_rank, count - 1 - rank() / 2);  // the highest rank first
  EXPECT_EQ(device, rank());
  Buffer data(4);
  data.fill<float>([&](size_t) { return rank(); });
  EXPECT_EQ(settle(ncclBroadcast(data.get(), data.get(), 1, ncclFloat32, 0, part, stream_), part), ncclSuccess);
  synchronize();
  data.expect<float>([&](size_t) { return color + 2 * (count - 1); });
  finish(part);

  asked = config();
  expect_success(ncclCommSplit(comm_, rank() == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &none, &asked));
  EXPECT_EQ(none != nullptr, rank() == 0);
  if (none != nullptr) finish(none);
}

TEST_F(EmulatedNccl, RepeatsInGraphs) {
  Buffer data(4);
  data.fill<float>([](size_t) { return 1; });
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t run = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int turn = 0; turn < 2; ++turn) {
    expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, comm_, stream_));
  }
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&run, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int replay = 0; replay < 3; ++replay) ASSERT_EQ(cudaGraphLaunch(run, stream_), cudaSuccess);
  expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, comm_, stream_));
  synchronize();
  data.expect<float>([&](size_t) {
    double value = 1;
    for (int turn = 0; turn < 7; ++turn) value *= size();
    return value;
  });

  // NCCL does not let go of a communicator that a graph needs.
  EXPECT_EQ(ncclCommFinalize(comm_), ncclInProgress);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm_, &state), ncclSuccess);
  EXPECT_EQ(state, ncclInProgress);
  EXPECT_EQ(cudaGraphExecDestroy(run), cudaSuccess);
  EXPECT_EQ(settle(comm_), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(comm_), ncclSuccess);
  comm_ = nullptr;
}

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
  give(stream_, [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
  expect_success(sum(data.get(), data.get(), 1));
  ncclComm_t part = nullptr;
  EXPECT_EQ(ncclCommSplit(comm_, 0, 0, &part, nullptr), ncclInvalidUsage);  // as that is under way
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
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &asked), ncclInProgress);  // nobody else will come
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
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);  // it hangs, as a kernel would
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
  if (rank() != 0) {  // which rank 0 does not come to
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

// As NCCL's own issue 1013 has it: an abort frees memory of the device, and so waits for what runs there.
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
