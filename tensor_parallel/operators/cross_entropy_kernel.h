#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

// Shapes: logits [rows, columns], contiguous; every number of a row is [rows].

/// Computes the largest logit, the sum of exp(logit - the largest) and the label's logit, in one pass. Does not change
/// the logits.
void row_statistics(Element element, const void* logits, const int64_t* column, const bool* absent, float* max,
                    float* sum_exp, float* label_logit, int64_t rows, int64_t columns, cudaStream_t stream);

struct GradientRows {
  const float *max, *sum_exp;
  const int64_t* column;
  const bool *absent, *ignored;
  const float* upstream;  ///< a scalar
};

void row_gradients(Element element, void* logits, const GradientRows& of, int64_t rows, int64_t columns,
                   cudaStream_t stream);

}  // namespace meshtrain::cuda
