#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

// Arithmetic on rows, in fp32 for halves, with temporaries of at most kTemporaryBytes on the host. Not differentiable.

/// Returns [N, ...]: the items of `tensor` at the indices `numbers` [N] int64 of dim 0.
at::Tensor rows_at(const at::Tensor& tensor, const at::Tensor& numbers);

/// Returns rows_at() with zeros where `left_out` [N] bool is true; undefined: nowhere.
at::Tensor rows_at(const at::Tensor& tensor, const at::Tensor& numbers, const at::Tensor& left_out);

/// Returns [T, M]: the sum of y[rows[t, 0]], y[rows[t, 1]], ..., in that order and rounded once, for y [R, M] and rows
/// [T, k] int64, without those where `left_out` [T, k] bool is true; undefined: with all.
at::Tensor summed_rows(const at::Tensor& y, const at::Tensor& rows, const at::Tensor& left_out = {});

/// Multiplies each row of y [R, M], in place, by its element of `factors` [R], whose dtype is that of y or wider.
void scale_rows(at::Tensor y, const at::Tensor& factors);

/// Adds the dot products of the rows of a [R, M] with those of b [R, M] or b [1, M] to sums [R], fp32 or fp64.
void add_row_dots(const at::Tensor& sums, const at::Tensor& a, const at::Tensor& b);

}  // namespace meshtrain
