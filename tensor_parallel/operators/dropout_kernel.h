#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

/// Writes x [rows, size] to `to`, on the device: features whose word of dropout_bits() is below `threshold` become
/// zero, the others are multiplied by `scale`. tokens: [rows]; `first`: the index of column 0 among all features.
void dropout(Element element, const void* x, void* to, const int64_t* tokens, int64_t rows, int64_t size, int64_t first,
             uint64_t key, uint32_t threshold, float scale, cudaStream_t stream);

}  // namespace meshtrain::cuda
