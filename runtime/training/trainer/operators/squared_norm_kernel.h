#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

/// Returns the number of partial sums that squared_norm() needs space for.
int64_t squared_norm_partials(int64_t n);

/// Computes sum = sum of the squares of n contiguous elements, in fp64 and in a fixed order. `partials`:
/// [squared_norm_partials(n)].
void squared_norm(Element element, const void* elements, int64_t n, double* partials, double* sum, cudaStream_t stream);

}  // namespace meshtrain::cuda
