#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshtrain {

/// The random choice of features that are set to zero (Srivastava et al., "Dropout", 2014). It depends on the key, the
/// token and the feature alone, so every mesh, a recomputation and a resumed run choose alike.
struct Dropout {
  double probability = 0;  ///< of zero; at least 0 and below 1
  uint64_t key = 0;        ///< philox_key() of the layer
};

/// Returns x with features set to zero at random, and the others divided by 1 - probability. The gradient of x is the
/// same function of the gradient of the result. Not differentiable.
///
/// x: [T, F], of any floating dtype; `tokens`: int64 [T] on the same device, a number for each token that is unique in
/// the run; `first_feature`: the index of column 0 among the features of all ranks. CPU and CUDA set the same features
/// to zero.
at::Tensor drop(const at::Tensor& x, const at::Tensor& tokens, int64_t first_feature, const Dropout& dropout);

}  // namespace meshtrain
