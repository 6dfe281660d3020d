#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/parameter.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// Largest part of the logits that is there at once. A product of some hundred tokens still runs at full speed.
inline constexpr int64_t kLogitBytes = int64_t{32} << 20;

/// Sum of the losses of the tokens whose label is not `ignored`, their logits being x W^T: a scalar, the same on every
/// tp rank, fp64 for fp64 and fp32 for all others.
///
/// x [T/tp, M] under sequence parallel, else [T, M]; `head`: W [V, M], its rows cut over tp, rounded up; labels int64
/// [T], the same on every tp rank, each `ignored` or an id of the vocabulary.
///
/// Neither logits nor their gradient are ever there as a whole: tokens are computed in chunks of `logit_bytes` a rank
/// at most, or one token. Loss and gradients of a chunk are computed together, so nothing is computed twice: where a
/// gradient will be wanted **the value is computed by the backward, and not a number until then**. Without recording it
/// is there at once.
///
/// Every tp rank must call it, and its backward. 3 T scalars are all-reduced, in two calls a chunk. x is gathered under
/// sequence parallel, once, and its gradient scattered; else the gradient is all-reduced. Once differentiable. The
/// gradient of W is added in place where W has a gradient buffer.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Parameter& head, const at::Tensor& labels, int64_t ignored,
                                const TensorParallel& tp, int64_t logit_bytes = kLogitBytes);

}  // namespace meshtrain
