#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/emulated_gpu/cuda/memory.h"
#include "tests/emulated_gpu/cuda/streams.h"

namespace meshtrain::emulated {
namespace {

/// Floats in device memory or pinned memory.
class Floats {
 public:
  enum class Memory { Device, Pinned };

  explicit Floats(size_t count, Memory memory = Memory::Device) : memory_(memory) {
    const size_t bytes = count * sizeof(float);
    void* data = nullptr;
    EXPECT_EQ(memory == Memory::Device ? cudaMalloc(&data, bytes) : cudaMallocHost(&data, bytes), cudaSuccess);
    data_ = static_cast<float*>(data);
    if (memory == Memory::Pinned) std::memset(data, 0, bytes);
  }
  ~Floats() { EXPECT_EQ(memory_ == Memory::Device ? cudaFree(data_) : cudaFreeHost(data_), cudaSuccess); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* get() const { return data_; }
  float& operator[](size_t index) const { return data_[index]; }

 private:
  Memory memory_;
  float* data_ = nullptr;
};

class EmulatedCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&a_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&b_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(a_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(b_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    cudaGetLastError();
  }

  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

float read(const float* data) {
  float value = 0;
  EXPECT_EQ(cudaMemcpy(&value, data, sizeof value, cudaMemcpyDeviceToHost), cudaSuccess);
  return value;
}

TEST_F(EmulatedCuda, HasTheDevicesThatAreAskedFor) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  cudaDeviceProp about{};
  ASSERT_EQ(cudaGetDeviceProperties(&about, 0), cudaSuccess);
  EXPECT_EQ(about.major, 9);
  EXPECT_EQ(cudaGetDeviceProperties(&about, count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(count), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(EmulatedCuda, GivesWorkInOrderButLate) {
  std::vector<int> order;
  for (int index = 0; index < 20; ++index) give(a_, [&order, index] { order.push_back(index); });
  EXPECT_LT(order.size(), 20u);  // twenty waits in between
  EXPECT_EQ(cudaStreamQuery(a_), cudaErrorNotReady);
  run(a_, [&] { order.push_back(20); });
  ASSERT_EQ(order.size(), 21u);
  for (int index = 0; index < 21; ++index) EXPECT_EQ(order[static_cast<size_t>(index)], index);
  EXPECT_EQ(cudaStreamQuery(a_), cudaSuccess);
}

TEST_F(EmulatedCuda, PassesOnWhatInlineWorkThrows) {
  EXPECT_THROW(run(a_, [] { throw std::invalid_argument("odd shape"); }), std::invalid_argument);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
}

TEST_F(EmulatedCuda, WaitsForAnEventAsItWasRecordedThen) {
  std::atomic<int> first = 0, second = 0, seen_first = -1, seen_second = -1;
  std::atomic<bool> may_end = false;
  give(a_, [&] { first = 1; });
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b_, event_, 0), cudaSuccess);
  give(b_, [&] { seen_first = first.load(), seen_second = second.load(); });
  give(a_, [&] {
    while (!may_end) std::this_thread::yield();
    second = 1;
  });
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);  // changes nothing for b_
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(seen_first, 1);
  EXPECT_EQ(seen_second, 0);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  may_end = true;
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(second, 1);
}

TEST_F(EmulatedCuda, TakesAnEventThatWasNeverRecordedForDone) {
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(a_, event_, 0), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
}

TEST_F(EmulatedCuda, DoesNotOrderStreamsByItself) {
  std::atomic<bool> may_end = false;
  give(a_, [&] {
    while (!may_end) std::this_thread::yield();
  });
  run(b_, [&] { may_end = true; });
  run(nullptr, [] {});  // nor by the default stream, because these do not block
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(EmulatedCuda, OrdersBlockingStreamsByTheDefaultOne) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  std::vector<int> order;
  give(blocking, [&] { order.push_back(0); });
  give(nullptr, [&] { order.push_back(1); });
  give(blocking, [&] { order.push_back(2); });
  ASSERT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(EmulatedCuda, MeasuresTime) {
  cudaEvent_t start = nullptr, end = nullptr;
  ASSERT_EQ(cudaEventCreate(&start), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaEventRecord(start, a_), cudaSuccess);
  std::atomic<bool> asked = false;
  give(a_, [&] {
    do std::this_thread::sleep_for(std::chrono::milliseconds(5));
    while (!asked);
  });
  EXPECT_EQ(cudaEventRecord(end, a_), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
  asked = true;
  ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  EXPECT_GE(milliseconds, 5);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
}

TEST_F(EmulatedCuda, CopiesPinnedMemoryLate) {
  const Floats device(1), source(1, Floats::Memory::Pinned), target(1, Floats::Memory::Pinned);
  source[0] = 7;
  std::atomic<bool> asked = false;
  give(a_, [&] {
    while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(cudaMemcpyAsync(device.get(), source.get(), 4, cudaMemcpyHostToDevice, a_), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(target.get(), device.get(), 4, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  EXPECT_EQ(target[0], 0);
  asked = true;
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(target[0], 7);
}

TEST_F(EmulatedCuda, CopiesPageableMemoryAtOnce) {
  const Floats device(1);
  float source = 3, target = 0;
  give(a_, [data = device.get()] { *data = 1; });
  ASSERT_EQ(cudaMemcpyAsync(device.get(), &source, 4, cudaMemcpyHostToDevice, a_), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&target, device.get(), 4, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  EXPECT_EQ(target, 3);
  note_pinned(&target, sizeof target, true);
  EXPECT_TRUE(is_pinned(&target, 4));
  note_pinned(&target, sizeof target, false);
  EXPECT_FALSE(is_pinned(&target, 4));
}

TEST_F(EmulatedCuda, RefusesCopiesThatAreWrong) {
  const Floats device(2), other(2);
  std::vector<float> host(4096);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device.get(), 12, cudaMemcpyDeviceToHost, a_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), device.get(), 8, cudaMemcpyHostToDevice, a_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(nullptr, device.get(), 8, cudaMemcpyDeviceToHost, a_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device.get(), 0, 12, a_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(other.get(), device.get(), 8, cudaMemcpyDefault, a_), cudaSuccess);
}

TEST_F(EmulatedCuda, CopiesRows) {
  const Floats device(6);
  const std::vector<float> source = {1, 2, 3, 4, 5, 6};
  std::vector<float> target(4);
  ASSERT_EQ(cudaMemcpy(device.get(), source.data(), 24, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaMemcpy2DAsync(target.data(), 8, device.get(), 12, 8, 2, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  EXPECT_EQ(target, (std::vector<float>{1, 2, 4, 5}));
}

TEST_F(EmulatedCuda, BeginsWithNaN) {
  const Floats device(1);
  EXPECT_TRUE(std::isnan(read(device.get())));
  ASSERT_EQ(cudaMemset(device.get(), 0, 4), cudaSuccess);
  EXPECT_EQ(read(device.get()), 0);
}

TEST_F(EmulatedCuda, RunsOutOfMemory) {
  size_t free = 0, total = 0, after = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&data, 1 << 20), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(after, free - (1 << 20));
  cudaPointerAttributes about{};
  ASSERT_EQ(cudaPointerGetAttributes(&about, data), cudaSuccess);
  EXPECT_EQ(about.type, cudaMemoryTypeDevice);
  int device = -1;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device_of(data, 1 << 20), device);
  EXPECT_EQ(device_of(data, (1 << 20) + 1), -1);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(&about), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
}

TEST_F(EmulatedCuda, FreesMemoryOnlyWhenNoWorkIsLeft) {
  std::atomic<bool> is_done = false;
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  give(a_, [&, data] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    *static_cast<float*>(data) = 1;
    is_done = true;
  });
  ASSERT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_TRUE(is_done);
}

TEST_F(EmulatedCuda, FreesWhatOnlyWorkStillHeld) {
  void* data = nullptr;
  ASSERT_EQ(cudaMallocHost(&data, 4), cudaSuccess);
  std::shared_ptr<void> held(data, [](void* memory) { EXPECT_EQ(cudaFreeHost(memory), cudaSuccess); });
  give(a_, [held] {});
  held.reset();  // the stream's thread destroys the last one, which cannot wait for itself
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (is_pinned(data, 4) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_FALSE(is_pinned(data, 4));
}

bool has_protection_keys() {
  std::ifstream about("/proc/cpuinfo");
  for (std::string line; std::getline(about, line);) {
    if (line.starts_with("flags") && (line + " ").find(" ospke ") != std::string::npos) return true;
  }
  return false;
}

constexpr int kThreads = 3;

/// Returns the ids of the threads that OpenMP gives to the caller's parallel regions, after `work` on each.
std::set<std::thread::id> team(const std::function<void()>& work = [] {}) {
  std::set<std::thread::id> threads;
  std::mutex mutex;
#pragma omp parallel num_threads(kThreads)
  {
    work();
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  }
  return threads;
}

// OpenMP keeps a team for each thread with parallel regions. A team's threads inherit the access of that thread.
TEST_F(EmulatedCuda, NoThreadWorksForHostAndDevice) {
  const std::set<std::thread::id> host = team();
  std::vector<std::set<std::thread::id>> device(3);
  run(a_, [&] { device[0] = team(); });
  give(b_, [&] { device[1] = team(); });
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  run_beside_streams([&] { device[2] = team(); });
  for (const std::set<std::thread::id>& threads : device) {
    EXPECT_EQ(threads.size(), static_cast<size_t>(kThreads));
    for (const std::thread::id thread : threads) EXPECT_FALSE(host.contains(thread));
  }
}

TEST_F(EmulatedCuda, AllThreadsOfTheDeviceTouchItsMemory) {
  team();  // the host's threads exist before those of the device
  const Floats device(1);
  std::atomic<int> num_reads = 0;
  const auto read = [&, data = static_cast<const volatile float*>(device.get())] {
    if (*data == 0) ++num_reads;
  };
  ASSERT_EQ(cudaMemset(device.get(), 0, 4), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  run(a_, [&] { team(read); });
  run_beside_streams([&] { team(read); });
  EXPECT_EQ(num_reads, 2 * kThreads);
}

TEST_F(EmulatedCuda, NoThreadOfTheHostTouchesTheDevice) {
  if (!has_protection_keys()) GTEST_SKIP() << "the CPU has no protection keys";
  const Floats device(1);
  ASSERT_EQ(cudaMemset(device.get(), 0, 4), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const volatile float* const data = device.get();
  EXPECT_DEATH(static_cast<void>(*data), "");
  EXPECT_DEATH(std::thread([&] { static_cast<void>(*data); }).join(), "");
  // EXPECT_DEATH forks, and in the child only a new thread can start OpenMP's threads.
  EXPECT_DEATH(std::thread([&] {
                 team(/*work=*/[&, first = std::this_thread::get_id()] {
                   if (std::this_thread::get_id() != first) static_cast<void>(*data);
                 });
               }).join(),
               "");
}

class EmulatedCapture : public EmulatedCuda {
 protected:
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(a_, mode), cudaSuccess);
  }
  /// Ends the capture and expects `error`.
  void expect_end(cudaError_t error) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph), error);
    EXPECT_EQ(graph != nullptr, error == cudaSuccess);
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
    EXPECT_EQ(cudaStreamIsCapturing(a_, &status), cudaSuccess);
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
    EXPECT_FALSE(is_captured(b_));
  }
};

TEST_F(EmulatedCapture, ReplaysWhatItKept) {
  int count = 0, other = 0;
  begin();
  run(a_, [&] { ++count; });
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b_, event_, 0), cudaSuccess);
  EXPECT_TRUE(is_captured(b_));
  give(b_, [&] { other = 10 * count; });
  ASSERT_EQ(cudaEventRecord(event_, b_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(a_, event_, 0), cudaSuccess);
  give(a_, [&] { count += other; });
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
  EXPECT_EQ(count, 0);
  cudaGraphExec_t run = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&run, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int replay = 0; replay < 2; ++replay) ASSERT_EQ(cudaGraphLaunch(run, b_), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(run, a_), cudaSuccess);  // runs after the others, although on another stream
  ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  EXPECT_EQ(count, 11 * (11 * 11 + 11 + 1));
  EXPECT_EQ(cudaGraphExecDestroy(run), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(run), cudaErrorInvalidValue);
}

TEST_F(EmulatedCapture, HasToBeJoined) {
  begin();
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b_, event_, 0), cudaSuccess);
  give(b_, [] {});
  expect_end(cudaErrorStreamCaptureUnjoined);
}

TEST_F(EmulatedCapture, MayForkForNothing) {
  begin();
  give(a_, [] {});
  ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b_, event_, 0), cudaSuccess);
  expect_end(cudaSuccess);
}

TEST_F(EmulatedCapture, DoesNotDependOnWorkOutside) {
  give(b_, [] {});
  ASSERT_EQ(cudaEventRecord(event_, b_), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(a_, event_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_THROW(give(a_, [] {}), std::runtime_error);
  expect_end(cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmulatedCapture, IsSpoiledByQuestionsAboutIt) {
  const auto check = [&](cudaError_t error, const std::function<cudaError_t()>& ask) {
    begin(cudaStreamCaptureModeRelaxed);
    give(a_, [] {});
    ASSERT_EQ(cudaEventRecord(event_, a_), cudaSuccess);
    EXPECT_EQ(ask(), error);
    expect_end(cudaErrorStreamCaptureInvalidated);
  };
  check(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(a_); });
  check(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(a_); });
  check(cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); });
  check(cudaErrorCapturedEvent, [&] { return cudaEventQuery(event_); });
  check(cudaErrorCapturedEvent, [&] { return cudaEventSynchronize(event_); });
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);  // and so after its end
  EXPECT_EQ(cudaStreamWaitEvent(b_, event_, 0), cudaErrorCapturedEvent);
  ASSERT_EQ(cudaEventRecord(event_, b_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
}

TEST_F(EmulatedCapture, RefusesUnsafeCallsOfItsOwnThread) {
  cudaEvent_t outside = nullptr;
  ASSERT_EQ(cudaEventCreate(&outside), cudaSuccess);
  void* data = nullptr;
  ASSERT_EQ(cudaMalloc(&data, 4), cudaSuccess);
  void* more = nullptr;
  float host = 0;
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return cudaMalloc(&more, 4); },
      [&] { return cudaFree(data); },
      [&] { return cudaEventQuery(outside); },
      [&] { return cudaStreamSynchronize(b_); },
      [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaMemcpy(&host, data, 4, cudaMemcpyDeviceToHost); },
      [&] { return cudaMemcpyAsync(&host, data, 4, cudaMemcpyDeviceToHost, a_); },
  };
  for (const auto& call : calls) {
    begin();
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    expect_end(cudaErrorStreamCaptureInvalidated);
  }
  begin();  // another thread may continue it
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaMalloc(&more, 4), cudaSuccess);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  expect_end(cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(outside), cudaSuccess);
}

TEST_F(EmulatedCapture, MindsOtherThreadsByItsMode) {
  const auto query = [&] {
    cudaError_t error = cudaSuccess;
    std::thread([&] { error = cudaEventQuery(event_); }).join();
    return error;
  };
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(query(), cudaSuccess);
  expect_end(cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(query(), cudaErrorStreamCaptureUnsupported);
  expect_end(cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmulatedCapture, EndsWhereItBegan) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorIllegalState);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  begin();
  EXPECT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  std::thread([&] { EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureWrongThread); }).join();
  expect_end(cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmulatedCapture, TellsNodesAndTheirDependencies) {
  begin();
  give(a_, [] {});
  give(a_, [] {});
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 0;
  ASSERT_EQ(cudaStreamGetCaptureInfo(a_, &status, &id, nullptr, &nodes, nullptr, &count), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_GT(id, 0u);
  ASSERT_EQ(count, 1u);
  size_t before = 0;
  ASSERT_EQ(cudaGraphNodeGetDependencies(nodes[0], nullptr, nullptr, &before), cudaSuccess);
  EXPECT_EQ(before, 1u);
  expect_end(cudaSuccess);
}

}  // namespace
}  // namespace meshtrain::emulated
