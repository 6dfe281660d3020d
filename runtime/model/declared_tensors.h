#pragma once

#include <vector>

#include "runtime/model/shape.h"
#include "runtime/safetensors/tensor_entry.h"

namespace meshtrain {

/// Returns name, complete shape and `dtype` of each parameter of a model of this shape, in the order of its units,
/// without allocating any.
std::vector<TensorEntry> declared_tensors(const ModelShape& shape, at::ScalarType dtype);

}  // namespace meshtrain
