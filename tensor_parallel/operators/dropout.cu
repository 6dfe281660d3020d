#include "mesh/device/cuda/kernel.cuh"
#include "tensor_parallel/operators/dropout_bits.h"
#include "tensor_parallel/operators/dropout_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread computes the features of one counter. `groups`: counters that a row needs.
template <class T>
__global__ void __launch_bounds__(kThreads)
    drop(const T* __restrict__ x, T* __restrict__ to, const int64_t* __restrict__ tokens, int64_t rows, int64_t size,
         int64_t first, int64_t groups, uint64_t key, uint32_t threshold, float scale) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * groups; i += stride) {
    const int64_t row = i / groups, group = first / kFeaturesOfCounter + i % groups;
    const Counter bits = dropout_bits(tokens[row], group, key);
#pragma unroll
    for (int j = 0; j < kFeaturesOfCounter; ++j) {
      const int64_t column = group * kFeaturesOfCounter + j - first;
      if (column < 0 || column >= size) continue;
      const int64_t element = row * size + column;
      to[element] = bits[j] < threshold ? narrow<T>(0) : narrow<T>(wide(x[element]) * scale);
    }
  }
}

}  // namespace

void dropout(Element element, const void* x, void* to, const int64_t* tokens, int64_t rows, int64_t size, int64_t first,
             uint64_t key, uint32_t threshold, float scale, cudaStream_t stream) {
  if (rows == 0 || size == 0) return;
  const int64_t groups = (first + size - 1) / kFeaturesOfCounter - first / kFeaturesOfCounter + 1;
  for_element(element, [&]<class T>() {
    launch("dropout", drop<T>, grid_for(divided_up(rows * groups, int64_t{kThreads}), 32), kThreads, stream,
           static_cast<const T*>(x), static_cast<T*>(to), tokens, rows, size, first, groups, key, threshold, scale);
  });
}

}  // namespace meshtrain::cuda
