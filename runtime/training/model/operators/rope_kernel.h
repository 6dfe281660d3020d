#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

/// The strides of [B, s, heads, D], in elements; that of D is 1.
struct HeadStrides {
  int64_t batch, position, head;
};

struct RopeShape {
  int64_t batch, positions, heads, half;  ///< half: D / 2
  HeadStrides x, out;
  int64_t angle_batch, angle_position;  ///< strides of both cos and sin; 0 for a batch that shares them
};

/// Rotates x by the angles, or `back`, into `out`, which may be x. Each element is read and written once.
void rotate(Element element, const void* x, const void* cos, const void* sin, void* out, const RopeShape& shape,
            bool back, cudaStream_t stream);

}  // namespace meshtrain::cuda
