#include "mesh/device/cuda/kernel.cuh"
#include "runtime/training/optimizer/operators/rounding_bits.h"
#include "runtime/training/optimizer/operators/stochastic_rounding_kernel.h"

namespace meshtrain::cuda {
namespace {

constexpr int kThreads = 256;

/// Returns the first run that ends after `element`, the only one that may have it.
__device__ __forceinline__ int64_t run_of(const ElementRun* runs, int64_t num_runs, int64_t element) {
  int64_t low = 0, high = num_runs;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (runs[middle].offset + runs[middle].numel <= element) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kThreads)
    round(uint16_t* __restrict__ rounded, const float* __restrict__ exact, int64_t n,
          const ElementRun* __restrict__ runs, int64_t num_runs, int64_t first, uint32_t step, uint32_t stream) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    const int64_t element = first + i, number_of_run = run_of(runs, num_runs, element);
    if (number_of_run == num_runs || runs[number_of_run].offset > element) continue;  // padding
    const ElementRun run = runs[number_of_run];
    const int64_t index = run.index + element - run.offset;
    const Counter bits = rounding_bits(static_cast<uint64_t>(index / kElementsOfCounter), run.key, step, stream);
    uint32_t number;
    memcpy(&number, exact + i, sizeof number);
    rounded[i] = rounded_by(number, bits_of(bits, index % kElementsOfCounter));
  }
}

}  // namespace

void round_stochastically(void* rounded, const float* exact, int64_t n, const ElementRun* runs, int64_t num_runs,
                          int64_t first, uint32_t step, uint32_t stream_of_bits, cudaStream_t stream) {
  if (n == 0 || num_runs == 0) return;
  launch("round_stochastically_", round, grid_for(divided_up(n, int64_t{kThreads}), 32), kThreads, stream,
         static_cast<uint16_t*>(rounded), exact, n, runs, num_runs, first, step, stream_of_bits);
}

}  // namespace meshtrain::cuda
