#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Computes out = beta out + a b for fp32 matrices on the CPU, a [m, k] and b [k, n], by oneDNN. Rows or columns of
/// each must lie side by side, or oneDNN makes a copy. Needs onednn_multiplies_in_place().
void multiply_by_onednn(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, float beta);

/// Returns true when LibTorch's function for products in place takes fp32: on processors where oneDNN multiplies bf16
/// alone, although others have the instructions for fp32.
bool onednn_multiplies_in_place();

/// Returns true when oneDNN multiplies in place, unless the BLAS that LibTorch calls adds fp32 products to a matrix
/// clearly faster on this processor with this thread's number of threads: both are timed at the first call, in a few
/// milliseconds. MKL has no AVX-512 kernels for processors of other makers than Intel, others know processors that
/// oneDNN does not.
bool onednn_adds_fastest();

}  // namespace meshtrain
