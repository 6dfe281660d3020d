#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "mesh/parameter.h"
#include "runtime/training/model/adapter_shape.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/safetensors/folder.h"

namespace meshtrain {

inline constexpr const char* kPeftConfig = "adapter_config.json";
inline constexpr const char* kPeftWeights = "adapter_model.safetensors";
/// The begin of all names in a folder of PEFT, before those of transformers.
inline constexpr const char* kPeftPrefix = "base_model.model.";

/// A module of transformers that has an adapter in a folder of PEFT: a linear layer, or several that the family stores
/// as one (qkv_proj). Then its A has the A of the layers one after the other, and its B has their B on the diagonal and
/// zeros elsewhere. Or the embedding, whose inputs are ids: A [rank, V] is the transpose of ours.
struct PeftModule {
  struct Part {
    std::string layer;  ///< "model.layers.0.self_attn.q_proj"
    int64_t first_row;  ///< of the layer's outputs in those of the module
    int64_t rows;
  };

  std::string name;         ///< "model.layers.0.self_attn.qkv_proj"
  std::vector<Part> parts;  ///< the layers with an adapter, in the order of the model
  int64_t in_features, out_features;

  bool is_embedding() const { return name == kEmbeddingLayer; }
  std::string a() const { return kPeftPrefix + adapter_names(name + ".weight").a; }
  std::string b() const { return kPeftPrefix + adapter_names(name + ".weight").b; }
};

/// The end of the name of a base's weight that PEFT saves with adapters of the embedding and the head.
inline constexpr const char* kPeftBaseCopy = ".base_layer.weight";

/// Returns the modules that the adapters of `shape` belong to, in the order of the model.
std::vector<PeftModule> peft_modules(const ModelShape& shape);

/// Returns the names of the base's parameters in `file`, the weights of a folder of PEFT (its modules_to_save), in the
/// order of the file. The head of a model of tied embeddings is left out: it is the embedding.
std::vector<std::string> base_parameters_of_peft(const SafetensorsFile& file, const ModelShape& shape);

/// The tensors of a folder of PEFT, for the parameters of a model. A module of several layers may also have one A of
/// the model's rank, which then is that of each of its layers.
class PeftWeights {
 public:
  /// Opens the weights of the adapters of `shape`. Throws InputError when they cannot be read, when an adapter is
  /// missing or of another shape, and when a tensor belongs to none.
  PeftWeights(const std::filesystem::path& folder, const ModelShape& shape);

  /// Fills this rank's part of `parameter`, rounded to its dtype. Returns false, without a change, for a parameter of
  /// the base that the folder does not have. Throws InputError when the disk fails. No collective.
  bool read(const Parameter& parameter) const;

  /// Throws InputError when the folder has a copy of `parameter`, of the base, with other values than this rank's part
  /// (kPeftBaseCopy). Values are compared in the narrower of both dtypes. No collective.
  void check_base(const Parameter& parameter) const;

 private:
  at::Tensor own_part(const at::Tensor& full, const Parameter& parameter) const;
  at::Tensor factor(const std::string& name) const;  // complete
  void check(const PeftModule& module) const;

  SafetensorsFile file_;
  int64_t rank_;
  bool is_tied_;
  std::vector<PeftModule> modules_;
};

}  // namespace meshtrain
