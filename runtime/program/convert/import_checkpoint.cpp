#include "runtime/program/convert/import_checkpoint.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <system_error>

#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "mesh/base/progress.h"
#include "mesh/layout.h"
#include "runtime/program/convert/freed_memory.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/program/recipe/changes.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/run/run_directory.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"
#include "runtime/training/checkpoint/manifest_writer.h"
#include "runtime/training/checkpoint/piece.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/model/unused_weights.h"
#include "runtime/training/safetensors/folder.h"
#include "runtime/training/safetensors/folder_kind.h"
#include "runtime/training/safetensors/writer.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "rank-00000.safetensors";

[[noreturn]] void refuse(const fs::path& hf, const std::vector<std::string>& differences) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < differences.size() && i < kMost; ++i) text += (i == 0 ? "" : "; ") + differences[i];
  if (differences.size() > kMost) text += "; and " + std::to_string(differences.size() - kMost) + " more";
  throw InputError("the model in " + hf.string() + " differs from the recipe's: " + text);
}

/// Checks the shape in config.json, except for values that do not concern the weights.
void check_shape(const fs::path& hf, const Recipe& recipe) {
  if (const std::string problem = describe_no_model(hf); !problem.empty()) throw InputError(problem);
  Recipe theirs = recipe;
  theirs.model.shape = read_config_json(hf / "config.json");
  theirs.model.shape.initializer_range = recipe.model.shape.initializer_range;
  const auto& scaling = theirs.model.shape.rope_scaling;
  if (scaling && scaling->type == "default") theirs.model.shape.rope_scaling.reset();
  if (!scaling) theirs.model.shape.max_position_embeddings = recipe.model.shape.max_position_embeddings;
  std::vector<std::string> differences = compare_recipes(to_yaml(theirs), to_yaml(recipe)).contradictions;
  for (std::string& difference : differences) difference += " there";
  if (!differences.empty()) refuse(hf, differences);
}

/// Returns the model's tensors, in the dtypes that they have in `source`.
std::vector<TensorEntry> tensors_of(const fs::path& hf, const SafetensorsFolder& source, const ModelShape& shape) {
  std::vector<TensorEntry> tensors = declared_tensors(shape, at::kFloat);
  std::vector<std::string> differences;
  for (TensorEntry& tensor : tensors) {
    std::optional<at::ScalarType> dtype;  // holds the values of all parts
    for (const FolderTensor& stored : folder_parts(shape, tensor.name, tensor.shape)) {
      if (!source.contains(stored.name)) {
        differences.push_back(stored.name + " is missing in it");
        continue;
      }
      const TensorEntry& found = source.entry(stored.name);
      if (found.shape != stored.shape) {
        differences.push_back(stored.name + ": " + describe_shape(stored.shape) + ", but " +
                              describe_shape(found.shape) + " in it");
      } else if (!at::isFloatingType(found.dtype) || c10::elementSize(found.dtype) == 1) {
        differences.push_back(tensor.name + " has dtype " + *safetensors_dtype(found.dtype) + " in it");
      }
      dtype = dtype ? at::promoteTypes(*dtype, found.dtype) : found.dtype;
    }
    tensor.dtype = dtype.value_or(tensor.dtype);
  }
  if (!differences.empty()) refuse(hf, differences);
  return tensors;
}

/// Returns the values of a parameter, `box`, in its dtype.
at::Tensor read_parameter(const SafetensorsFolder& source, const ModelShape& shape, const TensorEntry& parameter,
                          const Box& box) {
  const std::vector<FolderTensor> parts = folder_parts(shape, parameter.name, parameter.shape);
  if (parts.size() == 1) return parts[0].turned(source.read(parts[0].name, parts[0].within(box))).contiguous();
  at::Tensor values = at::empty(parameter.shape, parameter.dtype);
  read_parts(source, parts, box, values);
  return values;
}

/// Writes the pieces, complete tensors, as a file in `folder`. Returns its part of the manifest.
std::string write_pieces(const fs::path& folder, const SafetensorsFolder& source,
                         const std::vector<TensorEntry>& tensors, const ModelShape& shape) {
  std::vector<TensorEntry> pieces;
  std::vector<Box> boxes;
  for (const TensorEntry& tensor : tensors) {
    boxes.push_back({std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape});
    pieces.push_back({piece_name(tensor.name, boxes.back()), tensor.dtype, tensor.shape});
  }
  SafetensorsWriter file(folder / kFile, pieces);
  ManifestPart part({kFile, checksum(file.header().data(), file.header().size())});
  Progress progress("import to " + folder.string(), total_bytes(tensors), "bytes");
  for (size_t i = 0; i < tensors.size(); ++i) {
    {
      const at::Tensor values = read_parameter(source, shape, tensors[i], boxes[i]);
      file.write(pieces[i].name, values);
      part.add(tensors[i].name, tensors[i].dtype, tensors[i].shape, boxes[i],
               checksum(values.const_data_ptr(), values.nbytes()));
    }
    return_freed_memory();
    progress.advance(num_bytes(tensors[i]));
  }
  file.finish();
  return part.packed();
}

}  // namespace

ImportedCheckpoint import_checkpoint(const fs::path& hf, const Recipe& recipe, const fs::path& run_dir) {
  if (recipe.model.shape.adapter) {
    throw InputError(
        "the recipe has adapters, and their checkpoints do not contain the base: use meshtrain train with model.hf: " +
        hf.string());
  }
  check_shape(hf, recipe);
  const SafetensorsFolder source = open_weights(hf, recipe.model.shape);
  const std::vector<TensorEntry> tensors = tensors_of(hf, source, recipe.model.shape);
  check_tied_head(source, recipe.model.shape);

  CheckpointHead head;
  head.recipe = to_yaml(recipe);
  head.mesh = MeshLayout::fit({}, recipe.parallel.order, 1).describe();
  const RunDirectory directory(RunDirectory::folder_of(recipe, run_dir), /*resume=*/false);
  const CheckpointFolder checkpoints(directory.checkpoints());
  checkpoints.clean();
  const std::vector<std::string> owners = checkpoints.owners();
  checkpoints.claim(owners.empty() ? random_id() : owners.front());
  const std::string attempt = random_id();
  const fs::path partial = checkpoints.partial(0, attempt);
  checkpoints.begin(0, attempt);
  try {
    write_atomically(partial / "manifest.json",
                     manifest_text(head, {write_pieces(partial, source, tensors, recipe.model.shape)}));
    checkpoints.complete(0, attempt);
  } catch (...) {
    std::error_code error;
    fs::remove_all(partial, error);
    throw;
  }
  return {checkpoints.step(0), weight_warnings(source, recipe.model.shape)};
}

}  // namespace meshtrain
