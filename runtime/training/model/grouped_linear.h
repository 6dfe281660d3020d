#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tensor_parallel/products/layer_input.h"

namespace meshtrain {

/// Returns [R, n]: for each expert its consecutive rows of x [R, k], `counts` of them, times its matrix w_e^T, of the
/// leaf `weight` [E, n, k]. Differentiable once; the gradient of `weight` is written or added in place if the leaf has
/// one (leaf_gradient.h), zeros for an expert without rows. No collective.
at::Tensor grouped_linear(const LayerInput& x, const at::Tensor& weight, const std::vector<int64_t>& counts);

}  // namespace meshtrain
