#include "mesh/device/cuda/kernel.cuh"
#include "tensor_parallel/operators/cross_entropy_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 512;  // threads for one row
constexpr int kUnroll = 4;     // vectors that a thread loads at once

/// Calls with(values, first) for the elements of a row: N = 16 bytes of them at a time, and one by one the elements
/// before the first and after the last complete vector. A row may begin at any address.
template <class T, class With>
__device__ __forceinline__ void for_elements(const T* row, int64_t columns, With with) {
  constexpr int N = kVector<T>;
  const auto address = reinterpret_cast<uintptr_t>(row);
  const int64_t to_vector = static_cast<int64_t>((16 - address % 16) % 16 / sizeof(T));
  const int64_t lead = to_vector < columns ? to_vector : columns, vectors = (columns - lead) / N;
  const int64_t rest = lead + vectors * N, single = threadIdx.x;
  if (single < lead) {
    float value[1] = {wide(row[single])};
    with(value, single);
  }
  if (single < columns - rest) {
    float value[1] = {wide(row[rest + single])};
    with(value, rest + single);
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

/// Returns the largest value of the threads of a block, to each of them; NaN if one is NaN. `shared` must not be
/// written before the block's next barrier.
__device__ __forceinline__ float max_of_block(float value, float (&shared)[kWarp]) {
  value = max_of_lanes(value);
  const unsigned lane = threadIdx.x % kWarp;
  if (lane == 0) shared[threadIdx.x / kWarp] = value;
  __syncthreads();
  return max_of_lanes(lane < kThreads / kWarp ? shared[lane] : -INFINITY);
}

/// Returns the number that is subtracted from logits: 0 when all of them are -inf, so that their exponentials are 0.
__device__ __forceinline__ float origin(float max) {
  return max == -INFINITY ? 0.0f : max;
}

// A thread subtracts the largest logit that it has seen, and rescales its sum when a larger one follows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    statistics(const T* __restrict__ logits, const int64_t* __restrict__ column, const bool* __restrict__ absent,
               float* __restrict__ max, float* __restrict__ sum_exp, float* __restrict__ label_logit, int64_t rows,
               int64_t columns) {
  __shared__ float shared[2][kWarp], of_warps[kWarp];
  RowSum row_sum(shared);
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = logits + row * columns;
    float largest = -INFINITY, sum = 0;
    for_elements(from, columns, [&](const auto& values, int64_t) {
      float here = largest;
      for (const float value : values) here = value != value || value > here ? value : here;
      const float measured_from = origin(here);
      if (here != largest) sum *= __expf(largest - measured_from);
      largest = here;
      for (const float value : values) sum += __expf(value - measured_from);
    });
    const float of_row = max_of_block(largest, of_warps);
    sum = row_sum(sum * __expf(largest - origin(of_row)));
    if (threadIdx.x == 0) {
      max[row] = of_row;
      sum_exp[row] = sum;
      label_logit[row] = absent[row] ? 0.0f : wide(from[column[row]]);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) gradients(T* logits, GradientRows of, int64_t rows, int64_t columns) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    T* to = logits + row * columns;
    const float upstream = *of.upstream, largest = origin(of.max[row]);
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

void row_statistics(Element element, const void* logits, const int64_t* column, const bool* absent, float* max,
                    float* sum_exp, float* label_logit, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (rows == 0) return;
  for_element(element, [&]<class T>() {
    launch("cross_entropy_statistics", statistics<T>, grid_for(rows, 16), kThreads, stream,
           static_cast<const T*>(logits), column, absent, max, sum_exp, label_logit, rows, columns);
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
