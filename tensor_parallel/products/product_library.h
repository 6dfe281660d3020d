#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Computes out = beta out + a b for fp32 matrices on the CPU, a [m, k] and b [k, n], by oneDNN. Rows or columns of
/// each must lie side by side, or oneDNN makes a copy. Needs onednn_multiplies_in_place().
void multiply_by_onednn(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, float beta);

/// Returns true when LibTorch's function for products in place takes fp32: only on processors where oneDNN multiplies
/// bf16, although others have the instructions for fp32. There oneDNN also adds weight gradients, twice as fast as MKL
/// if Intel is not the maker of the processor (docs/benchmarks.md). No timing decides, so one processor gives the same
/// bits on every rank and after a resume.
bool onednn_multiplies_in_place();

}  // namespace meshtrain
