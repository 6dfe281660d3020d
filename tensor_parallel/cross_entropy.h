#pragma once

#include <ATen/core/Tensor.h>

#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain {

/// Sum of the losses of the tokens whose label is not `ignored`: a scalar, the same on every tp rank, fp64 for fp64
/// logits and fp32 for all others.
///
/// logits [T, V_local]: this rank's columns of the vocabulary, of which the first `valid` (0 and all included) are
/// the ids from `first` on; the rest is padding and takes no part. labels int64 [T], the same on every tp rank, each
/// `ignored` or an id of the vocabulary.
///
/// Every tp rank must call it. Logits are never gathered: 3 T scalars are all-reduced, and nothing in backward.
/// Differentiable once. The gradient is written over the logits unless they are a leaf, so nobody else may need their
/// values after the call.
at::Tensor vocab_parallel_cross_entropy(const at::Tensor& logits, const at::Tensor& labels, int64_t first,
                                        int64_t valid, int64_t ignored, const TensorParallel& tp);

}  // namespace meshtrain
