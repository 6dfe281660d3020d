#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

/// Strides in elements of [B, H, n]; the stride of a fourth dim, D, is 1.
struct QueryStrides {
  int64_t batch, head, query;
};

struct MergeShape {
  int64_t batch, heads, queries, head_dim;
  QueryStrides out, lse, part_out, part_lse;
};

/// Merges part_out into out. out, lse and part_lse are fp32; `element` is the dtype of part_out. Reads each once;
/// writes out and lse once.
void merge_attention(Element element, float* out, float* lse, const void* part_out, const float* part_lse,
                     const MergeShape& shape, cudaStream_t stream);

}  // namespace meshtrain::cuda
