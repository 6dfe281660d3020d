#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Returns a b^T, [m, n], for a [m, k] and b [n, k] of one dtype and device, with any strides. Not differentiable.
///
/// On the host products of few rows have loops of their own (few_rows.h), and large ones of fp32 use oneDNN; all others
/// are at::mm. LibTorch uses MKL for fp32, which is slower, by half on some processors with AVX-512
/// (docs/benchmarks.md). Halves are summed in fp32 and rounded once. If LibTorch has no fast kernel for
/// halves on this processor, they are multiplied in fp32, with temporaries for `a` and for pieces of the others.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// Computes product(a, b) into `out` [m, n], which may be rows of a larger tensor. Writes there directly, except for
/// oneDNN into an `out` that is not contiguous: its result is copied. oneDNN writes on processors where it multiplies
/// bf16, elsewhere BLAS does.
void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b);

/// Adds a^T b to into [m, n], for a [T, m] and b [T, n] of one dtype; `into` may have another. `unwritten`: into = a^T
/// b, whatever `into` holds, NaN too. Works in place when LibTorch does that fast, otherwise with temporaries of at
/// most kTemporaryBytes, plus `b` in fp32 when halves are multiplied in fp32; such products are not rounded to halves
/// on their way into an fp32 `into`. Not differentiable.
void add_product(at::Tensor into, const at::Tensor& a, const at::Tensor& b, bool unwritten = false);

}  // namespace meshtrain
