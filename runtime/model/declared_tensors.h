#pragma once

#include <vector>

#include "runtime/model/shape.h"
#include "runtime/safetensors/tensor_entry.h"

namespace meshtrain {

/// The parameters of the model of this shape, whole, as if each were of `dtype`: in the order of its units, without any
/// memory for them.
std::vector<TensorEntry> declared_tensors(const ModelShape& shape, at::ScalarType dtype);

}  // namespace meshtrain
