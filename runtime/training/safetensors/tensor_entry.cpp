#include "runtime/training/safetensors/tensor_entry.h"

#include <array>
#include <stdexcept>
#include <utility>

namespace meshtrain {
namespace {

constexpr std::array<std::pair<const char*, at::ScalarType>, 16> kDtypes = {{{"F64", at::kDouble},
                                                                             {"F32", at::kFloat},
                                                                             {"F16", at::kHalf},
                                                                             {"BF16", at::kBFloat16},
                                                                             {"I64", at::kLong},
                                                                             {"I32", at::kInt},
                                                                             {"I16", at::kShort},
                                                                             {"I8", at::kChar},
                                                                             {"U64", at::kUInt64},
                                                                             {"U32", at::kUInt32},
                                                                             {"U16", at::kUInt16},
                                                                             {"U8", at::kByte},
                                                                             {"BOOL", at::kBool},
                                                                             {"F8_E4M3", at::kFloat8_e4m3fn},
                                                                             {"F8_E5M2", at::kFloat8_e5m2},
                                                                             {"C64", at::kComplexFloat}}};

}  // namespace

int64_t num_bytes(const TensorEntry& entry) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
  bool empty = false;
  for (const int64_t extent : entry.shape) {
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(bytes, extent == 0 ? 1 : extent, &bytes)) {
      throw std::overflow_error(entry.name + ": shape " + describe_shape(entry.shape) + " is too large");
    }
  }
  return empty ? 0 : bytes;
}

int64_t total_bytes(const std::vector<TensorEntry>& entries) {
  int64_t bytes = 0;
  for (const TensorEntry& entry : entries) bytes += num_bytes(entry);
  return bytes;
}

std::optional<at::ScalarType> dtype_of_safetensors(const std::string& name) {
  for (const auto& [known, dtype] : kDtypes) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

std::optional<std::string> safetensors_dtype(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (dtype == known) return name;
  }
  return std::nullopt;
}

std::string describe_shape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace meshtrain
