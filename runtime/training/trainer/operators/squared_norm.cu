#include "mesh/device/cuda/kernel.cuh"
#include "runtime/training/trainer/operators/squared_norm_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kUnroll = 4;  // vectors that a thread loads at once

/// Sums `value` over the threads of a block; thread 0 gets the result.
__device__ double block_sum(double value) {
  __shared__ double sums[kThreads / kWarp];
  value = sum_of_lanes(value);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = value;
  __syncthreads();
  if (threadIdx.x >= kWarp) return 0;
  return sum_of_lanes(threadIdx.x < kThreads / kWarp ? sums[threadIdx.x] : 0.0);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    squares(const T* __restrict__ elements, int64_t n, double* __restrict__ partials) {
  constexpr int64_t kBlock = int64_t{kThreads} * N * kUnroll;
  double sum = 0;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kBlock; first < n; first += gridDim.x * kBlock) {
    Pack<T, N> packs[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t i = first + (static_cast<int64_t>(u) * kThreads + threadIdx.x) * N;
      if (i + N <= n) {
        packs[u].load(elements + i);
      } else {  // the elements of an incomplete vector, one by one
        packs[u].zero();
        for (int64_t j = i; j < n; ++j) sum += static_cast<double>(wide(elements[j])) * wide(elements[j]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float values[N];
      packs[u].to(values);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += static_cast<double>(values[j]) * values[j];
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) sum_up(const double* partials, int64_t count, double* total) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *total = sum;
}

}  // namespace

int64_t squared_norm_partials(int64_t n) {
  return grid_for(divided_up(n, int64_t{kThreads} * kUnroll * 4), 4);
}

void squared_norm(Element element, const void* elements, int64_t n, double* partials, double* sum,
                  cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(squared_norm_partials(n));
  for_element(element, [&]<class T>() {
    const auto* from = static_cast<const T*>(elements);
    launch("squared_norm", aligned(elements) ? squares<T, kVector<T>> : squares<T, 1>, blocks, kThreads, stream, from,
           n, partials);
  });
  launch("squared_norm", sum_up, 1, kThreads, stream, partials, blocks, sum);
}

}  // namespace meshtrain::cuda
