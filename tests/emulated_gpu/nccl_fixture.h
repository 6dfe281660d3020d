// The emulated NCCL between the ranks of a test, through NCCL's own functions.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/world.h"

namespace meshtrain::emulated {

using meshtrain::testing::world;

/// Waits until `comm` has completed its call.
inline ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (state == ncclInProgress && std::chrono::steady_clock::now() < end) {
    if (const ncclResult_t result = ncclCommGetAsyncError(comm, &state); result != ncclSuccess) return result;
    std::this_thread::yield();
  }
  return state;
}

/// `comm` may be the result of the call.
inline ncclResult_t settle(ncclResult_t result, const ncclComm_t& comm) {
  return result == ncclInProgress ? settle(comm) : result;
}

inline ncclConfig_t config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

inline ncclUniqueId shared_id() {
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

/// Device memory for NCCL, compared on the host.
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
    world().barrier();  // a connected rank may fail, and the others would see that instead of the connection
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
  /// Expects the result of a call whose operation fails, maybe before this thread looks.
  static void expect_begun(ncclResult_t result) { EXPECT_TRUE(result == ncclSuccess || result == ncclInProgress); }
  void expect_success(ncclResult_t result) { EXPECT_EQ(settle(result, comm_), ncclSuccess); }

  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

}  // namespace meshtrain::emulated
