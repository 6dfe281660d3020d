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

/// Returns the bytes of the tensor's data. Throws std::overflow_error when strides or size are beyond an int64.
int64_t num_bytes(const TensorEntry& entry);
/// Returns the bytes of all tensors.
int64_t total_bytes(const std::vector<TensorEntry>& entries);

/// Convert "BF16" and the like to a dtype and back; std::nullopt when the other side has no such dtype.
std::optional<at::ScalarType> dtype_of_safetensors(const std::string& name);
std::optional<std::string> safetensors_dtype(at::ScalarType dtype);

/// Returns "[2, 3]".
std::string describe_shape(const std::vector<int64_t>& shape);

}  // namespace meshtrain
