#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Returns the sum of the squares of all elements: an fp64 scalar on their device. The same elements give the same
/// bits.
at::Tensor squared_norm(const at::Tensor& elements);

}  // namespace meshtrain
