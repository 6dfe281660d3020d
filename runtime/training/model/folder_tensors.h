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
/// The ends of the names of a layer's selection bias and of its experts' weights.
inline constexpr const char* kSelectionBias = ".gate.e_score_correction_bias";
inline constexpr const char* kExpertsGateUp = ".mlp.experts.gate_up_proj";
inline constexpr const char* kExpertsDown = ".mlp.experts.down_proj";

/// The advice for weights in MXFP4, the format of gpt-oss's published folders: the end of a message.
inline constexpr const char* kMxfp4Advice =
    "weights in blocks of 4 bits are not read: load the folder in transformers with "
    "quantization_config=Mxfp4Config(dequantize=True) and dtype=torch.bfloat16, and save it with "
    "save_pretrained(FOLDER, save_original_format=False)";

/// Returns true for the parameters of a layer's router and of its experts, which may have no adapters.
bool of_experts(const std::string& name);

/// Returns the dtype of the tensor `name` in a folder of `dtype`: fp32 for the selection bias of experts in halves.
at::ScalarType dtype_in_folder(const std::string& name, at::ScalarType dtype);

/// Opens the safetensors of a model of this shape and gives the tensors the names that transformers uses. As in
/// transformers, the files may be those of the model without its head, whose names lack "model.", and a tied embedding
/// may be stored only under the name of the head. Throws InputError as SafetensorsFolder does, and when the folder has
/// no embedding; that message lists the names that it has.
SafetensorsFolder open_weights(const std::filesystem::path& folder, const ModelShape& shape);

/// Throws InputError for the first tensor of a model of this shape that is not in `weights` or has another shape there.
void check_weights(const SafetensorsFolder& weights, const ModelShape& shape);

/// A tensor of a Hugging Face folder, or some rows of it, that has the values of a parameter or of a part of it. Some
/// families store q, k and v in one tensor, and gate and up in one; most have tensors for each expert.
struct FolderTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t first_row = 0;    ///< of `part` in the tensor
  Box part = {};            ///< of the parameter
  bool transposed = false;  ///< the tensor has the last two dims of the parameter in the other order

  /// Returns the box of the folder tensor that has the values of `box` of the parameter, which lies in `part`. A tensor
  /// of one expert lacks the first dim.
  Box within(Box box) const;
  /// Returns values of the tensor in the order of dims of the parameter, or the reverse: a view.
  at::Tensor turned(const at::Tensor& values) const { return transposed ? values.transpose(-2, -1) : values; }
};

/// Returns where a folder of this shape's family has the parameter `name` of `shape`: one tensor, but for experts one
/// for each part of each of them, in the order of the parameter.
std::vector<FolderTensor> folder_parts(const ModelShape& model, const std::string& name,
                                       const std::vector<int64_t>& shape);

/// Returns the tensor of a parameter that has one. Throws std::invalid_argument for others.
FolderTensor folder_tensor(const ModelShape& model, const std::string& name, const std::vector<int64_t>& shape);

/// Copies `box` of a parameter from the folder to `values`, [box.size]. `parts`: folder_parts() of the parameter. Reads
/// only what the box has.
void read_parts(const SafetensorsFolder& weights, const std::vector<FolderTensor>& parts, const Box& box,
                const at::Tensor& values);

/// Returns the tensors of a folder for these parameters, in their order. Parts of a folder tensor must follow each
/// other.
std::vector<TensorEntry> folder_tensors(const ModelShape& model, const std::vector<TensorEntry>& parameters);

}  // namespace meshtrain
