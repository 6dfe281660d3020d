#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// a b^T for a [m, k] and b [n, k] of one dtype and device, any strides -> [m, n]. Not differentiable.
///
/// fp32 products on the host that are large enough go to oneDNN, all others to at::mm. LibTorch itself takes MKL for
/// fp32, whose kernels for processors of other makers than Intel run at half the speed (docs/benchmarks.md).
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

}  // namespace meshtrain
