#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "runtime/training/model/shape.h"

namespace meshtrain {

/// The rotary angles of some token positions, for heads of D features.
struct Rotary {
  at::Tensor cos;  ///< [s, 1, R/2], or [B, s, 1, R/2] where sequences of a batch differ; R features of a head rotate
  at::Tensor sin;  ///< as cos

  /// Returns the angles of some rows of these, which must be [n, 1, R/2]: `rows` int64 [B, s] on any device, in [0, n).
  Rotary select(const at::Tensor& rows) const;
};

/// Computes the angles of `positions` (int64 [s] or [B, s], global under context parallelism). Frequencies and angles
/// are fp32, fp64 when `dtype` is; cos and sin are multiplied by the scaling's attention factor, then rounded to
/// `dtype`. Su et al., "RoFormer", 2021; scaling as in transformers (rope_scaling.h).
/// `length`: the positions of a complete sequence, which decides for scalings that depend on it.
Rotary make_rotary(const ModelShape& shape, const at::Tensor& positions, at::ScalarType dtype, at::Device device,
                   int64_t length = 0);

/// Returns the angles of sliding layers that rotate by rope_local_base_freq; without tensors when the model has none.
Rotary make_local_rotary(const ModelShape& shape, const at::Tensor& positions, at::ScalarType dtype, at::Device device);

/// Rotates x [B, s, heads, D] by the angles of R/2 pairs: feature i with feature i + R/2, for the first R features of
/// a head; the others stay. Differentiable; keeps the angles alone. The result overwrites x unless x is a leaf that
/// requires a gradient: do not use the values of x after the call.
at::Tensor rotate(const at::Tensor& x, const Rotary& rotary);

/// Splits qkv [B, s, H + 2K, D] into queries [B, s, H, D], keys and values, each [B, s, K, D]. Rotates queries and keys
/// in one pass and in place, as rotate() does; the backward writes the gradient of qkv in one pass.
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_rotated(const at::Tensor& qkv, const Rotary& rotary,
                                                             int64_t num_heads, int64_t num_kv_heads);

}  // namespace meshtrain
