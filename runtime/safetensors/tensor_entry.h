#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace meshtrain {

/// A tensor of a safetensors file, without its data.
struct TensorEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
};

/// Bytes of the tensor's data. Throws std::overflow_error when strides or size are beyond an int64.
int64_t num_bytes(const TensorEntry& entry);

/// "BF16" and the like as a dtype and back; nothing for a dtype that the other side does not have.
std::optional<at::ScalarType> dtype_of_safetensors(const std::string& name);
std::optional<std::string> safetensors_dtype(at::ScalarType dtype);

/// "[2, 3]"
std::string describe_shape(const std::vector<int64_t>& shape);

}  // namespace meshtrain
