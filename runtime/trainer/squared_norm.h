#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// Sum of the squares of all elements: an fp64 scalar, where they are. The same for the same elements every time.
at::Tensor squared_norm(const at::Tensor& elements);

}  // namespace meshtrain
