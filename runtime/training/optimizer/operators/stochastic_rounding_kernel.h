#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/training/optimizer/operators/element_run.h"

namespace meshtrain::cuda {

/// Rounds n fp32 numbers to bf16, elements [first, first + n) of the range that `runs` belong to, sorted by offset, on
/// the device. Elements in no run are not changed.
void round_stochastically(void* rounded, const float* exact, int64_t n, const ElementRun* runs, int64_t num_runs,
                          int64_t first, uint32_t step, uint32_t stream_of_bits, cudaStream_t stream);

}  // namespace meshtrain::cuda
