#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mesh/box.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/safetensors/tensor_entry.h"

namespace meshtrain {

inline constexpr const char* kEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kHead = "lm_head.weight";

/// Opens the safetensors of a model of this shape and gives the tensors the names that transformers uses. As in
/// transformers, the files may be those of the model without its head, whose names lack "model.", and a tied embedding
/// may be stored only under the name of the head. Throws InputError as SafetensorsFolder does, and when the folder has
/// no embedding; that message lists the names that it has.
SafetensorsFolder open_weights(const std::filesystem::path& folder, const ModelShape& shape);

/// Throws InputError for the first tensor of a model of this shape that is not in `weights` or has another shape there.
void check_weights(const SafetensorsFolder& weights, const ModelShape& shape);

/// The tensor of a Hugging Face folder that has the values of a parameter: all of its rows, or some of them, as some
/// families store q, k and v in one tensor, and gate and up in one.
struct FolderTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t first_row = 0;  ///< of the parameter in it

  /// Returns the box of the folder tensor that has the values of `box` of the parameter.
  Box within(Box box) const;
};

/// Returns where a folder of this shape's family has the parameter `name` of `shape`.
FolderTensor folder_tensor(const ModelShape& model, const std::string& name, const std::vector<int64_t>& shape);

/// Returns the tensors of a folder for these parameters, in their order. Parts of a folder tensor must follow each
/// other.
std::vector<TensorEntry> folder_tensors(const ModelShape& model, const std::vector<TensorEntry>& parameters);

}  // namespace meshtrain
