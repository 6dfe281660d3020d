#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "mesh/device/cuda/element.h"

namespace meshtrain::cuda {

/// The longest row that a kernel takes: a row is held in the registers of one block.
inline constexpr int64_t kLongestNorm = 16384;

/// Rows in groups of `inner`: rows of a group are `inner_stride` elements apart, groups `outer_stride`. The elements of
/// a row are contiguous.
struct Rows {
  const void* data;
  int64_t inner = 1, inner_stride = 0, outer_stride = 0;
};

/// The application of a weight to normalised values: times (weight + offset), rounded before when `rounds_first`.
/// `offset`: 0 or 1.
struct AppliedWeight {
  const void* weight;
  float offset;
  bool rounds_first;
};

/// The types of a norm: of what is normalised, and of weight and result. They are alike, or the first is fp32.
struct NormElements {
  Element stream, out;
};

/// Computes out = x / sqrt(mean(x^2) + eps) * weight; out [rows, size], rstd [rows] fp32. With a `residual` [rows,
/// size] it normalises x + residual, which it writes to `sum` [rows, size]; x then has the type of `out`.
void rms_norm(const NormElements& elements, const Rows& x, const void* residual, const AppliedWeight& weight, void* sum,
              void* out, float* rstd, int64_t rows, int64_t size, double eps, cudaStream_t stream);

/// Returns the rows of the fp32 buffer `partial` that rms_norm_backward needs for the gradient of the weight.
int64_t rms_norm_partial_rows(int64_t rows, int64_t size);

struct RmsNormGradients {
  void* x = nullptr;         ///< [rows, size]; null: not wanted
  float* partial = nullptr;  ///< [rms_norm_partial_rows(), size]; null: the weight's is not wanted
};

/// Computes the gradients of x, which has the type of the stream. `grad_sum` [rows, size], of that type, or null: is
/// added to the gradient of x.
void rms_norm_backward(const NormElements& elements, const void* grad, const void* grad_sum, const Rows& x,
                       const AppliedWeight& weight, const float* rstd, const RmsNormGradients& gradients, int64_t rows,
                       int64_t size, cudaStream_t stream);

/// Sums the columns of `partial` [count, size] in a fixed order, into `out` [size] or adds them to `out` when `add`.
void sum_rows(Element element, const float* partial, int64_t count, int64_t size, void* out, bool add,
              cudaStream_t stream);

}  // namespace meshtrain::cuda
