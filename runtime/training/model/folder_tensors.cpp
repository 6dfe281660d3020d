#include "runtime/training/model/folder_tensors.h"

#include <string_view>
#include <utility>

#include "mesh/base/error.h"
#include "runtime/training/model/families.h"
#include "runtime/training/model/tensor_names.h"
#include "runtime/training/model/transformer.h"

namespace meshtrain {
namespace {

struct Part {
  std::string_view name;  // ".q_proj."
  int64_t rows;
};

struct FusedTensor {
  std::string_view name;  // ".qkv_proj."
  std::vector<Part> parts;
};

std::vector<FusedTensor> fused_tensors(const ModelShape& model) {
  if (!family_of(model).fused_projections) return {};
  const int64_t queries = model.num_attention_heads * model.head_dim, keys = model.num_key_value_heads * model.head_dim;
  return {{".qkv_proj.", {{".q_proj.", queries}, {".k_proj.", keys}, {".v_proj.", keys}}},
          {".gate_up_proj.", {{".gate_proj.", model.intermediate_size}, {".up_proj.", model.intermediate_size}}}};
}

constexpr std::string_view kPrefix = "model.";

}  // namespace

SafetensorsFolder open_weights(const std::filesystem::path& folder, const ModelShape& shape) {
  SafetensorsFolder weights(folder);
  if (!weights.contains(kEmbedding) && weights.contains(std::string(kEmbedding).substr(kPrefix.size()))) {
    for (const std::string& name : weights.names()) {
      if (name != kHead && !name.starts_with(kPrefix)) weights.rename(name, std::string(kPrefix) + name);
    }
  }
  if (weights.contains(kHead) && shape.tie_word_embeddings) weights.rename(kHead, kEmbedding);
  if (weights.contains(kEmbedding)) return weights;
  throw InputError(folder.string() + ": has no tensor \"" + kEmbedding + "\": save the model under the names of " +
                   "transformers; the names there are " + describe_names(weights.names()));
}

void check_weights(const SafetensorsFolder& weights, const ModelShape& shape) {
  const std::string folder = weights.path().string();
  if (!shape.tie_word_embeddings && !weights.contains(kHead)) {
    throw InputError(folder + ": has no tensor \"" + kHead +
                     "\": save the model with its head (AutoModelForCausalLM), or set tie_word_embeddings to true in "
                     "config.json if the embedding is its head");
  }
  for (const TensorEntry& needed : folder_tensors(shape, declared_tensors(shape, at::kFloat))) {
    const TensorEntry& entry = weights.entry(needed.name);
    if (entry.shape == needed.shape) continue;
    throw InputError(folder + ": tensor " + needed.name + " has shape " + describe_shape(entry.shape) +
                     ", but config.json describes " + describe_shape(needed.shape));
  }
}

Box FolderTensor::within(Box box) const {
  if (!box.start.empty()) box.start[0] += first_row;
  return box;
}

FolderTensor folder_tensor(const ModelShape& model, const std::string& name, const std::vector<int64_t>& shape) {
  for (const FusedTensor& fused : fused_tensors(model)) {
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
