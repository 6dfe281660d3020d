#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

/// The buffers of an update, n contiguous elements each.
struct AdamWBuffers {
  Element values_element;  ///< the dtype of values and moments: Float or BFloat16
  void *values, *first_moment, *second_moment;
  Element gradients_element;
  const void* gradients;
  Element rounded_element;  ///< BFloat16 or Half
  void* rounded;            ///< null: not written
};

/// The parameters that all elements share; pointers are to numbers on the device.
struct AdamWRule {
  const double* learning_rate;
  const float* step;     ///< from 1 on
  const double* factor;  ///< multiplies the gradients; null: 1
  const bool* skip;      ///< true: nothing is changed; null: false
  double rate, beta1, beta2, weight_decay, eps;
};

/// Updates the buffers; reads and writes every element once. Does not change the gradients.
void adamw(const AdamWBuffers& buffers, int64_t n, const AdamWRule& rule, cudaStream_t stream);

}  // namespace meshtrain::cuda
