// Errors of a kernel are found, and correct kernels pass.
#include "tests/emulated/machine.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "mesh/device/cuda/kernel.cuh"

namespace meshtrain::cuda {
namespace {

using emulated::Error;
using emulated::Order;

constexpr int kThreads = 128;
constexpr Order kOrders[] = {Order::Forward, Order::Backward, Order::Shuffled};

/// Returns the error that a launch throws; empty when it throws none.
template <class... Parameters, class... Arguments>
std::string problem_of(void (*kernel)(Parameters...), dim3 grid, dim3 block, Arguments... arguments) {
  try {
    launch("kernel", kernel, grid, block, nullptr, arguments...);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

bool says(const std::string& problem, const std::string& part) {
  return problem.find(part) != std::string::npos;
}

// Each thread knows its index, and each exists once.

__global__ void __launch_bounds__(kThreads) count(int* counts) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  ++counts[block * blockDim.x * blockDim.y * blockDim.z + thread];
}

TEST(EmulatedMachine, RunsEveryThreadOnce) {
  for (const Order order : kOrders) {
    emulated::set_order(order);
    std::vector<int> counts(2 * 3 * 4 * 5 * 6 * 4);
    EXPECT_EQ(problem_of(count, dim3(2, 3, 4), dim3(5, 6, 4), counts.data()), "");
    EXPECT_EQ(counts, std::vector<int>(counts.size(), 1));
  }
}

// Warps read what others have written, and write what others have read. One of the barriers may be left out.

enum class Without { Nothing, BarrierAfterWriting, BarrierAfterReading };

template <Without kWithout>
__global__ void __launch_bounds__(kThreads) rotate_warps(float* out, int rounds) {
  __shared__ float of_warps[kThreads / kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, next = (warp + 1) % (kThreads / kWarp);
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x % kWarp == 0) of_warps[warp] = static_cast<float>(10 * round + warp);
    if (kWithout != Without::BarrierAfterWriting) __syncthreads();
    out[round * kThreads + static_cast<int>(threadIdx.x)] = of_warps[next];
    if (kWithout != Without::BarrierAfterReading) __syncthreads();
  }
}

template <Without kWithout>
bool depends_on_order() {
  std::vector<std::vector<float>> results;
  for (const Order order : kOrders) {
    emulated::set_order(order);
    std::vector<float> out(3 * kThreads);
    EXPECT_EQ(problem_of(rotate_warps<kWithout>, 2, kThreads, out.data(), 3), "");
    for (float& value : out) value = value == value ? value : -1;  // memory that nobody has written
    results.push_back(out);
  }
  return results[0] != results[1];
}

TEST(EmulatedMachine, AMissingBarrierShows) {
  EXPECT_FALSE(depends_on_order<Without::Nothing>());
  EXPECT_TRUE(depends_on_order<Without::BarrierAfterWriting>());
  EXPECT_TRUE(depends_on_order<Without::BarrierAfterReading>());
}

// The same between the lanes of a warp.

template <bool kBarrier>
__global__ void __launch_bounds__(kWarp) shift_lanes(int* values) {
  const unsigned lane = threadIdx.x;
  const int read = values[(lane + 1) % kWarp];
  if (kBarrier) __syncwarp();
  values[lane] = read;
}

TEST(EmulatedMachine, AMissingBarrierOfAWarpShows) {
  const auto result = [](auto kernel, Order order) {
    std::vector<int> values(kWarp);
    for (int i = 0; i < kWarp; ++i) values[static_cast<size_t>(i)] = i;
    emulated::set_order(order);
    EXPECT_EQ(problem_of(kernel, 1, kWarp, values.data()), "");
    return values;
  };
  EXPECT_EQ(result(shift_lanes<true>, Order::Forward), result(shift_lanes<true>, Order::Backward));
  EXPECT_EQ(result(shift_lanes<true>, Order::Forward), result(shift_lanes<true>, Order::Shuffled));
  EXPECT_NE(result(shift_lanes<false>, Order::Forward), result(shift_lanes<false>, Order::Backward));
}

// Shuffles among all lanes, and among half of them while the others do something else.

__global__ void __launch_bounds__(kThreads) lane_sums(double* sums, float* halves) {
  sums[threadIdx.x] = sum_of_lanes(static_cast<double>(threadIdx.x));
  const unsigned lane = threadIdx.x % kWarp;
  if (lane < 16) {
    halves[threadIdx.x] = __shfl_xor_sync(0x0000FFFFu, static_cast<float>(lane), 15);
    __syncwarp(0x0000FFFFu);
  } else {
    halves[threadIdx.x] = -1;
  }
}

TEST(EmulatedMachine, Shuffles) {
  for (const Order order : kOrders) {
    emulated::set_order(order);
    std::vector<double> sums(kThreads);
    std::vector<float> halves(kThreads);
    ASSERT_EQ(problem_of(lane_sums, 1, kThreads, sums.data(), halves.data()), "");
    for (size_t i = 0; i < kThreads; ++i) {
      const size_t warp = i / kWarp, lane = i % kWarp;
      EXPECT_EQ(sums[i], static_cast<double>(kWarp * kWarp * warp + kWarp * (kWarp - 1) / 2));
      EXPECT_EQ(halves[i], lane < 16 ? 15.0f - static_cast<float>(lane) : -1.0f);
    }
  }
}

// A block finds no data of the one before it.

__global__ void __launch_bounds__(kThreads) read_before_writing(float* out) {
  __shared__ float value;
  if (threadIdx.x == 0) {
    out[blockIdx.x] = value;
    value = 1;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) read_before_writing_of(T* out) {
  __shared__ T values[2][3], last;
  if (threadIdx.x == 0) {
    out[blockIdx.x] = values[1][2] == values[1][2] ? values[1][2] : last;
    values[1][2] = last = 1;
  }
}

TEST(EmulatedMachine, SharedMemoryHoldsNoNumbers) {
  for (const auto kernel : {read_before_writing, read_before_writing_of<float>}) {
    std::vector<float> out(3);
    ASSERT_EQ(problem_of(kernel, 3, kThreads, out.data()), "");
    for (const float value : out) EXPECT_NE(value, value);
  }
}

// Threads that never arrive.

enum class Fault {
  LeavesBeforeBarrier,
  WaitsAtAnotherBarrier,
  LeavesBeforeShuffle,
  WaitsForBlockInsteadOfShuffle,
  IsNotInMask,
  AsksALaneOutsideOfMask,
  OtherMask
};

template <Fault kFault>
__global__ void __launch_bounds__(kThreads) faulty(int* out) {
  const unsigned thread = threadIdx.x;
  if constexpr (kFault == Fault::LeavesBeforeBarrier) {
    if (thread == 77) return;
    __syncthreads();
  } else if constexpr (kFault == Fault::WaitsAtAnotherBarrier) {
    if (thread < 64) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if constexpr (kFault == Fault::LeavesBeforeShuffle) {
    if (thread == 77) return;
    out[thread] = __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
  } else if constexpr (kFault == Fault::WaitsForBlockInsteadOfShuffle) {
    if (thread != 77) out[thread] = __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
    __syncthreads();
  } else if constexpr (kFault == Fault::IsNotInMask) {
    out[thread] = __shfl_xor_sync(0xFFFFFF00u, 1, 1);
  } else if constexpr (kFault == Fault::AsksALaneOutsideOfMask) {
    if (thread < 16) out[thread] = __shfl_xor_sync(0x0000FFFFu, 1, 16);
  } else {
    __syncwarp(thread % kWarp < 16 ? 0xFFFFFFFFu : 0xFFFFFFFEu);
  }
}

TEST(EmulatedMachine, ThreadsThatDoNotComeAreNamed) {
  std::vector<int> out(kThreads);
  for (const Order order : kOrders) {
    emulated::set_order(order);
    const auto problem = [&](auto kernel, int threads = kThreads) {
      return problem_of(kernel, 2, threads, out.data());
    };
    std::string seen = problem(faulty<Fault::LeavesBeforeBarrier>);
    EXPECT_TRUE(says(seen, "in __syncthreads, machine_test.cpp:") && says(seen, "thread (77, 0, 0) has left")) << seen;
    seen = problem(faulty<Fault::WaitsAtAnotherBarrier>);
    EXPECT_TRUE(says(seen, "in __syncthreads, machine_test.cpp:") && says(seen, "waits in __syncthreads")) << seen;
    seen = problem(faulty<Fault::LeavesBeforeShuffle>);
    EXPECT_TRUE(says(seen, "in a shuffle of lanes 0xffffffff") && says(seen, "thread (77, 0, 0) has left")) << seen;
    seen = problem(faulty<Fault::WaitsForBlockInsteadOfShuffle>);
    EXPECT_TRUE(says(seen, "in a shuffle") && says(seen, "thread (77, 0, 0) waits in __syncthreads")) << seen;
    seen = problem(faulty<Fault::IsNotInMask>);
    EXPECT_TRUE(says(seen, "0xffffff00") && says(seen, "and is not one of them")) << seen;
    seen = problem(faulty<Fault::AsksALaneOutsideOfMask>);
    EXPECT_TRUE(says(seen, "and asks lane ")) << seen;
    seen = problem(faulty<Fault::OtherMask>);
    EXPECT_TRUE(says(seen, "in __syncwarp of lanes 0xffffffff") && says(seen, "0xfffffffe")) << seen;
    // 40 threads: the second warp has 8.
    seen = problem(faulty<Fault::LeavesBeforeShuffle>, 40);
    EXPECT_TRUE(says(seen, "its warp has 8")) << seen;
    // Earlier errors leave nothing behind.
    EXPECT_FALSE(depends_on_order<Without::Nothing>());
  }
}

// Sizes of launches.

__global__ void unbounded(int*) {}

TEST(EmulatedMachine, SizesThatCudaRefuses) {
  int* const none = nullptr;
  constexpr auto kernel = count;
  EXPECT_TRUE(says(problem_of(kernel, 0, 32, none), "there is no block"));
  EXPECT_TRUE(says(problem_of(kernel, 1, dim3(32, 0), none), "there is no thread"));
  EXPECT_TRUE(says(problem_of(kernel, dim3(1, 65536), 32, none), "65535) blocks"));
  EXPECT_TRUE(says(problem_of(kernel, 1, 1025, none), "up to 1024 in all"));
  EXPECT_TRUE(says(problem_of(kernel, 1, dim3(64, 32), none), "up to 1024 in all"));
  EXPECT_TRUE(says(problem_of(kernel, 1, dim3(1, 1, 65), none), "up to 1024 in all"));
  EXPECT_TRUE(says(problem_of(kernel, 1, kThreads + 1, none), "__launch_bounds__ are 128"));
  EXPECT_TRUE(says(problem_of(unbounded, 1, 32, none), "no __launch_bounds__"));
}

// Memory. With the sanitizers some of it ends the process before the machine can throw.

template <class T, int N>
__global__ void __launch_bounds__(kThreads) copy(const T* from, T* to) {
  Pack<T, N> pack;
  pack.load(from);
  pack.store(to);
}

TEST(EmulatedMachine, AWordThatIsMisaligned) {
  alignas(16) static float floats[8];
  alignas(16) static __half halves[16];
  const auto ends = [](const std::string& problem) {
    if (problem.empty()) return;
    std::fprintf(stderr, "%s\n", problem.c_str());
    std::abort();
  };
  EXPECT_EQ(problem_of(copy<float, 4>, 1, 1, floats + 0, floats + 4), "");
  EXPECT_EQ(problem_of(copy<__half, 4>, 1, 1, halves + 4, halves + 8), "");
  EXPECT_EQ(problem_of(copy<float, 1>, 1, 1, floats + 1, floats + 3), "");
  EXPECT_DEATH(ends(problem_of(copy<float, 4>, 1, 1, floats + 1, floats + 4)), "misaligned");
  EXPECT_DEATH(ends(problem_of(copy<float, 4>, 1, 1, floats + 0, floats + 3)), "misaligned");
  EXPECT_DEATH(ends(problem_of(copy<__half, 4>, 1, 1, halves + 2, halves + 8)), "misaligned");
  EXPECT_DEATH(ends(problem_of(copy<__half, 8>, 1, 1, halves + 4, halves + 8)), "misaligned");
}

#ifdef __SANITIZE_ADDRESS__
__global__ void __launch_bounds__(kThreads) copy_after_barrier(const float* from, float* to, int n) {
  __shared__ float shared[kThreads];
  float* const copy = shared;
  copy[threadIdx.x] = from[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) to[0] = copy[n];
}

TEST(EmulatedMachine, WhatLiesBehindMemoryIsGuarded) {
  const std::vector<float> full(kThreads), part(kThreads - 1);
  std::vector<float> to(1), nothing;
  EXPECT_EQ(problem_of(copy_after_barrier, 1, kThreads, full.data(), to.data(), 0), "");
  EXPECT_DEATH(problem_of(copy_after_barrier, 1, kThreads, part.data(), to.data(), 0), "heap-buffer-overflow");
  EXPECT_DEATH(problem_of(copy_after_barrier, 1, kThreads, full.data(), to.data() + 1, 0), "heap-buffer-overflow");
  EXPECT_DEATH(problem_of(copy_after_barrier, 1, kThreads, full.data(), to.data(), kThreads),
               "global-buffer-overflow|insufficient space");
}
#endif

}  // namespace
}  // namespace meshtrain::cuda
