#include "runtime/training/model/folder_tensors.h"

#include <stdexcept>
#include <string_view>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
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
  if (family_of(model).experts.fuses_shared) {
    const int64_t features = model.experts.shared_expert_intermediate_size;
    return {{".shared_mlp.input_linear.",
             {{".mlp.shared_expert.gate_proj.", features}, {".mlp.shared_expert.up_proj.", features}}},
            {".shared_mlp.output_linear.", {{".mlp.shared_expert.down_proj.", model.hidden_size}}}};
  }
  if (!family_of(model).fused_projections) return {};
  const int64_t queries = model.num_attention_heads * model.head_dim, keys = model.num_key_value_heads * model.head_dim;
  return {{".qkv_proj.", {{".q_proj.", queries}, {".k_proj.", keys}, {".v_proj.", keys}}},
          {".gate_up_proj.", {{".gate_proj.", model.intermediate_size}, {".up_proj.", model.intermediate_size}}}};
}

constexpr std::string_view kPrefix = "model.";
constexpr std::string_view kRouterLayer = ".mlp.gate.", kExpertsLayer = ".mlp.experts.";

Box complete(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

/// Returns the name of a tensor of expert `expert`: "...%.w1.weight" with its number.
std::string of_expert(std::string name, int64_t expert) {
  return name.replace(name.find('%'), 1, std::to_string(expert));
}

/// Returns the tensors of the experts' parameter `name`, which begins with `layer`; none: it is not one.
std::vector<FolderTensor> parts_of_experts(const ExpertTensors& names, const std::string& layer,
                                           const std::string& name, const std::vector<int64_t>& shape) {
  const bool is_gate_up = name.ends_with(kExpertsGateUp);
  if (!is_gate_up && !name.ends_with(kExpertsDown)) return {};
  if (!names.all_gate_up.empty()) {
    FolderTensor all{layer + (is_gate_up ? names.all_gate_up : names.all_down), shape, 0, complete(shape)};
    all.transposed = names.transposed;
    if (all.transposed) std::swap(all.shape[1], all.shape[2]);
    return {all};
  }
  const std::vector<std::string> of_one = is_gate_up ? std::vector{names.gate, names.up} : std::vector{names.down};
  const int64_t rows = shape[1] / static_cast<int64_t>(of_one.size());
  std::vector<FolderTensor> parts;
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    for (size_t i = 0; i < of_one.size(); ++i) {
      const Box part{{expert, static_cast<int64_t>(i) * rows, 0}, {1, rows, shape[2]}};
      parts.push_back({layer + of_expert(of_one[i], expert), {rows, shape[2]}, 0, part});
    }
  }
  return parts;
}

}  // namespace

bool of_experts(const std::string& name) {
  return name.find(kRouterLayer) != std::string::npos || name.find(kExpertsLayer) != std::string::npos;
}

at::ScalarType dtype_in_folder(const std::string& name, at::ScalarType dtype) {
  return c10::isReducedFloatingType(dtype) && name.ends_with(kSelectionBias) ? at::kFloat : dtype;
}

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
  for (const std::string& name : weights.names()) {
    if (!name.ends_with("_proj_blocks")) continue;
    throw InputError(folder + ": tensor " + name + " belongs to MXFP4 weights: " + kMxfp4Advice);
  }
  for (const TensorEntry& needed : folder_tensors(shape, declared_tensors(shape, at::kFloat))) {
    const TensorEntry& entry = weights.entry(needed.name);
    if (entry.shape == needed.shape) continue;
    throw InputError(folder + ": tensor " + needed.name + " has shape " + describe_shape(entry.shape) +
                     ", but config.json describes " + describe_shape(needed.shape));
  }
}

Box FolderTensor::within(Box box) const {
  for (size_t dim = 0; dim < box.start.size(); ++dim) box.start[dim] -= part.start[dim];
  if (shape.size() < box.start.size()) {
    box.start.erase(box.start.begin());
    box.size.erase(box.size.begin());
  }
  if (!box.start.empty()) box.start[0] += first_row;
  if (transposed) {
    std::swap(box.start.end()[-2], box.start.end()[-1]);
    std::swap(box.size.end()[-2], box.size.end()[-1]);
  }
  return box;
}

std::vector<FolderTensor> folder_parts(const ModelShape& model, const std::string& name,
                                       const std::vector<int64_t>& shape) {
  if (const FamilyExperts& experts = family_of(model).experts) {
    const std::string layer = name.substr(0, name.find(".mlp."));
    std::vector<FolderTensor> parts = parts_of_experts(experts.tensors, layer, name, shape);
    if (!parts.empty()) return parts;
    for (const char* of : {"weight", "bias"}) {
      if (!name.ends_with(std::string(kRouterLayer) + of)) continue;
      return {{layer + experts.tensors.router + "." + of, shape, 0, complete(shape)}};
    }
  }
  for (const FusedTensor& fused : fused_tensors(model)) {
    int64_t rows = 0;
    FolderTensor stored{"", shape, 0, complete(shape)};
    for (const Part& part : fused.parts) {
      if (const size_t at = name.find(part.name); at != std::string::npos) {
        stored.name = std::string(name).replace(at, part.name.size(), fused.name);
        stored.first_row = rows;
      }
      rows += part.rows;
    }
    if (stored.name.empty()) continue;
    stored.shape[0] = rows;
    return {stored};
  }
  return {{name, shape, 0, complete(shape)}};
}

FolderTensor folder_tensor(const ModelShape& model, const std::string& name, const std::vector<int64_t>& shape) {
  std::vector<FolderTensor> parts = folder_parts(model, name, shape);
  if (parts.size() != 1) throw std::invalid_argument(name + " is several tensors in a folder");
  return std::move(parts.front());
}

void read_parts(const SafetensorsFolder& weights, const std::vector<FolderTensor>& parts, const Box& box,
                const at::Tensor& values) {
  at::NoGradGuard no_grad;
  for (const FolderTensor& stored : parts) {
    const std::optional<Box> shared = intersect(stored.part, box);
    if (!shared) continue;
    Box own = *shared;
    for (size_t dim = 0; dim < own.start.size(); ++dim) own.start[dim] -= box.start[dim];
    part(values, own).copy_(stored.turned(weights.read(stored.name, stored.within(*shared))).reshape(own.size));
  }
}

std::vector<TensorEntry> folder_tensors(const ModelShape& model, const std::vector<TensorEntry>& parameters) {
  std::vector<TensorEntry> all;
  for (const TensorEntry& parameter : parameters) {
    for (FolderTensor& stored : folder_parts(model, parameter.name, parameter.shape)) {
      if (stored.first_row == 0) all.push_back({std::move(stored.name), parameter.dtype, std::move(stored.shape)});
    }
  }
  return all;
}

}  // namespace meshtrain
