#pragma once

#include <cstdint>

#include "mesh/device/host_lanes.h"

namespace meshtrain::rms_norm_host {

/// Loops of rms_norm() over rows in memory with the instructions of Set (host_lanes.h): fp32 sums, each row
/// read from memory once. X, the dtype of what is normalised, and W, that of the weight and of the output, are float or
/// c10::BFloat16; rows have `features` elements, a multiple of kLanes. `applied` is a NormWeight.

/// The rows of a norm.
struct Rows {
  int64_t rows, features;
  int64_t applied;
};

/// Writes the normalised rows of `x` to `out` and 1/sqrt(mean(x^2) + eps) of each to `rstd`.
template <class Set, class X, class W>
MESHTRAIN_LANES void forward(const X* x, const W* weight, const Rows& of, float eps, W* out, float* rstd);

/// The same of sum = x + residual, rounded, which it writes too; x has the dtype of the output.
template <class Set, class X, class W>
MESHTRAIN_LANES void forward_of_sum(const W* x, const X* residual, const W* weight, const Rows& of, float eps, X* sum,
                                    W* out, float* rstd);

/// Writes dx = r (g - n mean(g n)), rounded, + grad_sum, with n = x r and g = dy factor, unless `grad_x` is null, and
/// the sum of dy n over the rows to `grad_weight` [features] unless that is null. `grad_sum` may be null.
template <class Set, class X, class W>
MESHTRAIN_LANES void backward(const W* grad, const X* grad_sum, const X* x, const W* weight, const float* rstd,
                              const Rows& of, X* grad_x, float* grad_weight);

}  // namespace meshtrain::rms_norm_host
