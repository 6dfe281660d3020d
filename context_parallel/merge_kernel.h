#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/cuda/element.h"

namespace meshtrain::cuda {

/// Distances in elements of [B, H, n]; of a fourth dim, D, 1.
struct QueryStrides {
  int64_t batch, head, query;
};

struct MergeShape {
  int64_t batch, heads, queries, head_dim;
  QueryStrides out, lse, part_out, part_lse;
};

/// out and lse fp32, part_lse too; `element`: of part_out. Each is read once, out and lse are written once.
void merge_attention(Element element, float* out, float* lse, const void* part_out, const float* part_lse,
                     const MergeShape& shape, cudaStream_t stream);

}  // namespace meshtrain::cuda
