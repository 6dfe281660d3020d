#include "runtime/model/folder_tensors.h"

#include <string_view>
#include <utility>

#include "runtime/model/families.h"

namespace meshtrain {
namespace {

struct Part {
  std::string_view name;  // ".q_proj."
  int64_t rows;
};

struct Fused {
  std::string_view name;  // ".qkv_proj."
  std::vector<Part> parts;
};

std::vector<Fused> fused_tensors(const ModelShape& model) {
  if (!family_of(model).fused_projections) return {};
  const int64_t queries = model.num_attention_heads * model.head_dim, keys = model.num_key_value_heads * model.head_dim;
  return {{".qkv_proj.", {{".q_proj.", queries}, {".k_proj.", keys}, {".v_proj.", keys}}},
          {".gate_up_proj.", {{".gate_proj.", model.intermediate_size}, {".up_proj.", model.intermediate_size}}}};
}

}  // namespace

Box FolderTensor::within(Box box) const {
  if (!box.start.empty()) box.start[0] += first_row;
  return box;
}

FolderTensor folder_tensor(const ModelShape& model, const std::string& name, const std::vector<int64_t>& shape) {
  for (const Fused& fused : fused_tensors(model)) {
    int64_t rows = 0;
    FolderTensor stored;
    for (const Part& part : fused.parts) {
      if (const size_t at = name.find(part.name); at != std::string::npos) {
        stored.name = std::string(name).replace(at, part.name.size(), fused.name);
        stored.first_row = rows;
      }
      rows += part.rows;
    }
    if (stored.name.empty()) continue;
    stored.shape = shape;
    stored.shape[0] = rows;
    return stored;
  }
  return {name, shape};
}

std::vector<TensorEntry> folder_tensors(const ModelShape& model, const std::vector<TensorEntry>& parameters) {
  std::vector<TensorEntry> all;
  for (const TensorEntry& parameter : parameters) {
    FolderTensor stored = folder_tensor(model, parameter.name, parameter.shape);
    if (stored.first_row == 0) all.push_back({std::move(stored.name), parameter.dtype, std::move(stored.shape)});
  }
  return all;
}

}  // namespace meshtrain
