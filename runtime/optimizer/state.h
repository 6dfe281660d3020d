#pragma once

#include <ATen/core/Tensor.h>

namespace meshtrain {

/// State of an optimizer for some elements of a shard, `values`: zeros of their shape, dtype and device. Every
/// optimizer makes its state here, when it is constructed.
at::Tensor make_state(const at::Tensor& values);

}  // namespace meshtrain
