#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/cuda/element.h"

namespace meshtrain::cuda {

/// n elements of each, contiguous.
struct AdamWBuffers {
  Element values_element;  ///< of values and moments: Float or BFloat16
  void *values, *first_moment, *second_moment;
  Element gradients_element;
  const void* gradients;
  Element rounded_element;  ///< BFloat16 or Half
  void* rounded;            ///< null: nowhere
};

/// What is the same for all elements; pointers are to numbers on the device.
struct AdamWRule {
  const double* learning_rate;
  const float* step;     ///< from 1 on
  const double* factor;  ///< of the gradients; null: 1
  const bool* skip;      ///< where it is true nothing is changed; null: false
  double rate, beta1, beta2, weight_decay, eps;
};

/// Reads and writes every element once. Does not change the gradients.
void adamw(const AdamWBuffers& buffers, int64_t n, const AdamWRule& rule, cudaStream_t stream);

}  // namespace meshtrain::cuda
