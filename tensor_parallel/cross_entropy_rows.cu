#include "mesh/cuda/kernel.cuh"
#include "tensor_parallel/cross_entropy_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 512;  // of a row
constexpr int kUnroll = 4;     // vectors of a thread on their way at once

/// Calls with(values, first) for the elements of a row: N = 16 bytes of them at a time, and one by one what stands
/// before the first and behind the last whole vector. A row may begin anywhere.
template <class T, class With>
__device__ __forceinline__ void for_elements(const T* row, int64_t columns, With with) {
  constexpr int N = kVector<T>;
  const auto address = reinterpret_cast<uintptr_t>(row);
  const int64_t to_vector = static_cast<int64_t>((16 - address % 16) % 16 / sizeof(T));
  const int64_t lead = to_vector < columns ? to_vector : columns, vectors = (columns - lead) / N;
  const int64_t behind = lead + vectors * N, single = threadIdx.x;
  if (single < lead) {
    float value[1] = {wide(row[single])};
    with(value, single);
  }
  if (single < columns - behind) {
    float value[1] = {wide(row[behind + single])};
    with(value, behind + single);
  }
  int64_t i = threadIdx.x;
  for (; i + (kUnroll - 1) * kThreads < vectors; i += kUnroll * kThreads) {
    Pack<T, N> packs[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) packs[u].load(row + lead + (i + u * kThreads) * N);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float values[N];
      packs[u].to(values);
      with(values, lead + (i + u * kThreads) * N);
    }
  }
  for (; i < vectors; i += kThreads) {
    Pack<T, N> pack;
    pack.load(row + lead + i * N);
    float values[N];
    pack.to(values);
    with(values, lead + i * N);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    maxima(const T* __restrict__ logits, float* __restrict__ max, int64_t rows, int64_t columns) {
  __shared__ float of_warps[kThreads / kWarp];
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float largest = -INFINITY;
    for_elements(logits + row * columns, columns, [&](const auto& values, int64_t) {
      for (const float value : values) largest = value != value || value > largest ? value : largest;
    });
    largest = max_of_lanes(largest);
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = largest;
    __syncthreads();
    if (threadIdx.x < kWarp) {
      largest = max_of_lanes(threadIdx.x < kThreads / kWarp ? of_warps[threadIdx.x] : -INFINITY);
      if (threadIdx.x == 0) max[row] = largest;
    }
    __syncthreads();
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sums(const T* __restrict__ logits, const float* __restrict__ max, const int64_t* __restrict__ column,
         const bool* __restrict__ absent, float* __restrict__ sum_exp, float* __restrict__ label_logit, int64_t rows,
         int64_t columns) {
  __shared__ float shared[2][kWarp];
  RowSum row_sum(shared);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = logits + row * columns;
    const float largest = max[row];
    float sum = 0;
    for_elements(from, columns, [&](const auto& values, int64_t) {
      for (const float value : values) sum += __expf(value - largest);
    });
    sum = row_sum(sum);
    if (threadIdx.x == 0) {
      sum_exp[row] = sum;
      label_logit[row] = absent[row] ? 0.0f : wide(from[column[row]]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) gradients(T* logits, GradientRows of, int64_t rows, int64_t columns) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    T* to = logits + row * columns;
    const float upstream = *of.upstream, largest = of.max[row];
    const float scale = of.ignored[row] ? 0.0f : upstream / of.sum_exp[row];
    const int64_t label = of.absent[row] ? -1 : of.column[row];
    for_elements(to, columns, [&](auto& values, int64_t first) {
      constexpr int kCount = sizeof(values) / sizeof(float);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = __expf(values[i] - largest) * scale - (first + i == label ? upstream : 0.0f);
      }
      Pack<T, kCount> pack;
      pack.from(values);
      pack.store(to + first);
    });
  }
}

}  // namespace

void row_maxima(Element element, const void* logits, float* max, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 0) return;
  for_element(element, [&]<class T>() {
    launch("cross_entropy_maxima", maxima<T>, grid_for(rows, 16), kThreads, stream, static_cast<const T*>(logits), max,
           rows, columns);
  });
}

void row_sums(Element element, const void* logits, const float* max, const int64_t* column, const bool* absent,
              float* sum_exp, float* label_logit, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 0) return;
  for_element(element, [&]<class T>() {
    launch("cross_entropy_sums_", sums<T>, grid_for(rows, 16), kThreads, stream, static_cast<const T*>(logits), max,
           column, absent, sum_exp, label_logit, rows, columns);
  });
}

void row_gradients(Element element, void* logits, const GradientRows& of, int64_t rows, int64_t columns,
                   cudaStream_t stream) {
  if (rows == 0) return;
  for_element(element, [&]<class T>() {
    launch("cross_entropy_gradients_", gradients<T>, grid_for(rows, 16), kThreads, stream, static_cast<T*>(logits), of,
           rows, columns);
  });
}

}  // namespace meshtrain::cuda
