// Behaviour of the emulated NCCL.
#include "tests/emulated_gpu/nccl_fixture.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "tests/emulated_gpu/cuda/streams.h"

namespace meshtrain::emulated {
namespace {

class EmulatedNcclMoves : public EmulatedNccl {
 protected:
  /// Runs all collectives, with more data than a mailbox holds.
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
    const Buffer part(bytes), full(bytes * ranks);
    void* const my_part = full.get() + mine * bytes;
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
    expect_success(ncclAllGather(part.get(), full.get(), count, type, comm_, stream_));
    synchronize();
    full.expect<T>([&](size_t index) { return of(index / count, index % count); });

    fill(full);
    expect_success(ncclReduceScatter(full.get(), my_part, count, type, ncclSum, comm_, stream_));
    expect_success(ncclAllGather(my_part, full.get(), count, type, comm_, stream_));
    synchronize();
    full.expect<T>(sum);

    const int root = size() - 1;
    fill(part);
    expect_success(ncclBroadcast(part.get(), part.get(), count, type, root, comm_, stream_));
    synchronize();
    part.expect<T>([&](size_t index) { return of(static_cast<size_t>(root), index); });

    fill(part);
    expect_success(ncclReduce(part.get(), part.get(), count, type, ncclSum, root, comm_, stream_));
    synchronize();
    part.expect<T>([&](size_t index) { return rank() == root ? sum(index) : of(mine, index); });

    // Around the ring, in both directions at once.
    fill(part);
    expect_success(ncclGroupStart());
    EXPECT_EQ(ncclSend(part.get(), count, type, next(), comm_, stream_), ncclSuccess);
    EXPECT_EQ(ncclRecv(full.get(), count, type, last(), comm_, stream_), ncclSuccess);
    expect_success(ncclGroupEnd());
    EXPECT_EQ(cudaMemcpyAsync(part.get(), full.get(), bytes, cudaMemcpyDeviceToDevice, stream_), cudaSuccess);
    synchronize();
    part.expect<T>([&](size_t index) { return of(static_cast<size_t>(last()), index); });
  }
};

TEST_F(EmulatedNcclMoves, Floats) {
  check_collectives<float>(ncclFloat32);
  check_collectives<double>(ncclFloat64);
  check_collectives<__half>(ncclFloat16);
  check_collectives<__nv_bfloat16>(ncclBfloat16);
}

TEST_F(EmulatedNcclMoves, Integers) {
  check_collectives<int8_t>(ncclInt8);
  check_collectives<uint8_t>(ncclUint8);
  check_collectives<int32_t>(ncclInt32);
  check_collectives<int64_t>(ncclInt64);
}

TEST_F(EmulatedNccl, AddsUpShortFloatsInFp32) {
  if (size() < 2) GTEST_SKIP() << "one rank adds nothing";
  const Buffer data(2);
  // bf16 cannot represent 256 + 1; it can represent 256 + 1 + 1.
  const_cast<Buffer&>(data).fill<__nv_bfloat16>([&](size_t) { return rank() == 0 ? 256.0 : 1.0; });
  expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclBfloat16, ncclSum, comm_, stream_));
  synchronize();
  const float expected = static_cast<float>(static_cast<__nv_bfloat16>(256.0f + static_cast<float>(size() - 1)));
  data.expect<__nv_bfloat16>([&](size_t) { return expected; });
}

TEST_F(EmulatedNccl, RunsLate) {
  Buffer data(4);
  data.fill<float>([](size_t) { return 1; });
  std::atomic<bool> asked = false;
  give(stream_, [&] {
    while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  expect_success(ncclAllReduce(data.get(), data.get(), 1, ncclFloat32, ncclSum, comm_, stream_));
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  asked = true;
  synchronize();
  data.expect<float>([&](size_t) { return size(); });
}

TEST_F(EmulatedNccl, DoesGroupsWithoutDeadlock) {
  const size_t count = 200000;
  Buffer from(4 * count * static_cast<size_t>(size())), to(4 * count * static_cast<size_t>(size()));
  from.fill<float>([&](size_t index) { return static_cast<double>(rank()) + static_cast<double>(index / count); });
  expect_success(ncclGroupStart());
  for (int peer = 0; peer < size(); ++peer) {  // this rank included; all sends before all receives
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

  // NCCL does not free a communicator that a graph needs.
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

}  // namespace
}  // namespace meshtrain::emulated
