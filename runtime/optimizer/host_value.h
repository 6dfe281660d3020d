#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// A scalar, read on the host, which waits for a GPU to have computed it; 0 on the Meta device, which computes nothing.
inline double host_value(const at::Tensor& scalar) {
  return scalar.is_meta() ? 0 : scalar.item().toDouble();
}

}  // namespace meshtrain
