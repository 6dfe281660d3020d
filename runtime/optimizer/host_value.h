#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// A scalar, read on the host, which waits for a GPU to have computed it; 0 on the Meta device, which computes nothing.
inline double host_value(const at::Tensor& scalar) {
  return scalar.is_meta() ? 0 : scalar.item().toDouble();
}

/// A flag, read so; one that is not defined is false.
inline bool is_true(const at::Tensor& flag) {
  return flag.defined() && host_value(flag) != 0;
}

}  // namespace meshtrain
