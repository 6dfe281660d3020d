#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Computes out = beta out + a b for fp32 matrices on the CPU, a [m, k] and b [k, n], by oneDNN. Rows or columns of
/// each must lie side by side, or oneDNN makes a copy. Needs onednn_multiplies_in_place().
void multiply_by_onednn(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, float beta);

/// Returns true when LibTorch's function for products in place takes fp32: on processors where oneDNN multiplies bf16
/// alone, although others have the instructions for fp32. There oneDNN adds weight gradients too, twice as fast as MKL
/// on processors of other makers than Intel (docs/benchmarks.md). Nothing is timed: one processor gives the same bits
/// on every rank and after a resume.
bool onednn_multiplies_in_place();

}  // namespace meshtrain
