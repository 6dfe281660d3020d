#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// a b^T for a [m, k] and b [n, k] of one dtype and device, any strides -> [m, n]. Not differentiable.
///
/// fp32 products on the host that are large enough go to oneDNN, all others to at::mm: LibTorch itself takes MKL for
/// fp32, which is slower, and by half on AVX-512 processors that are not Intel's (docs/benchmarks.md). Halves are
/// summed in fp32 and rounded once; where LibTorch has no fast kernel for them on this processor they are multiplied in
/// fp32, with temporaries of `a` and of pieces of the others.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// product(a, b) into `out` [m, n], rows of a larger tensor for one. Written there at once but for oneDNN's, which is
/// copied: oneDNN gives a tensor of its own.
void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b);

/// into [m, n] += a^T b for a [T, m] and b [T, n] of one dtype; that of `into` may be another. `unwritten`: into = a^T
/// b, whatever it holds, NaN too. In place by LibTorch's library where that is fast; else through temporaries of
/// kTemporaryBytes at most, besides `b` in fp32 where halves are multiplied so; halves that are are not rounded on
/// their way into an fp32 `into`. Not differentiable.
void add_product(at::Tensor into, const at::Tensor& a, const at::Tensor& b, bool unwritten = false);

}  // namespace meshtrain
