#include "tests/null_gpu/planted/copy.h"

#include "mesh/device/cuda/kernel.cuh"

namespace meshtrain::cuda {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(128) copy(const T* from, T* to) {
  Pack<T, N> pack;
  pack.load(from + static_cast<int64_t>(threadIdx.x) * N);
  pack.store(to + static_cast<int64_t>(threadIdx.x) * N);
}

}  // namespace

void copy_words(const float* from, float* to, const CopyLaunch& sizes) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, sizes.blocks_in_y);
  config.blockDim = dim3(sizes.threads);
  config.dynamicSmemBytes = sizes.shared_bytes;
  cudaLaunchKernelEx(&config, copy<float, kVector<float>>, from, to);
  check(cudaGetLastError(), "copy_words");
}

}  // namespace meshtrain::cuda
