#include "runtime/program/convert/export_checkpoint.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/program/convert/freed_memory.h"
#include "runtime/program/recipe/base_weights.h"
#include "runtime/program/recipe/check_data.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/program/recipe/load.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/transformer.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

Recipe recipe_of(const fs::path& folder, const Manifest& manifest) try {
  Recipe recipe = parse_recipe(manifest.head.recipe);
  recipe.locations["data.tokenizer"] = "data.tokenizer of the run's recipe";
  return recipe;
} catch (const InputError& error) {
  throw InputError("the recipe in " + (folder / "manifest.json").string() + " cannot be read: " + error.what());
}

/// Returns the tensors of the recipe's model. Throws InputError unless the checkpoint has all of them.
std::vector<TensorEntry> tensors_of(const fs::path& folder, const Manifest& manifest, const ModelShape& shape,
                                    at::ScalarType dtype) {
  const auto fail = [&](const std::string& what) {
    throw InputError((folder / "manifest.json").string() + " contradicts its recipe: " + what);
  };
  if (shape.num_hidden_layers > static_cast<int64_t>(manifest.tensors.size())) {
    fail("the model has " + counted(shape.num_hidden_layers, "layer") + ", and the manifest " +
         counted(manifest.tensors.size(), "tensor"));
  }
  std::vector<TensorEntry> tensors = declared_tensors(shape, dtype), all = declared_adapters(shape, dtype);
  all.insert(all.end(), tensors.begin(), tensors.end());
  for (const TensorEntry& tensor : all) {
    const auto found = manifest.tensors.find(tensor.name);
    if (found == manifest.tensors.end() && shape.adapter && !is_adapter(tensor.name)) continue;  // of the base
    if (found == manifest.tensors.end()) fail(tensor.name + " is missing");
    if (found->second.shape != tensor.shape || !at::isFloatingType(found->second.dtype)) {
      fail(tensor.name + " has " + *safetensors_dtype(found->second.dtype) + " " + describe_shape(found->second.shape) +
           ", the model has " + describe_shape(tensor.shape));
    }
  }
  return tensors;
}

/// Returns the folder of the tokenizer `path`. Throws InputError when it has ids of `vocab_size` or above.
fs::path tokenizer_folder(const fs::path& path, int64_t vocab_size) {
  const std::string asked = "--tokenizer " + path.string();
  std::error_code error;
  fs::path folder = path;
  if (fs::is_regular_file(path, error)) {
    folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const std::vector<std::string> names = tokenizer_files(folder);
    if (std::find(names.begin(), names.end(), path.filename().string()) == names.end()) {
      throw InputError(asked +
                       ": this is not the name of a tokenizer's file: give its tokenizer.json or tokenizer.model, or "
                       "the folder with its files");
    }
  }
  if (tokenizer_files(folder).empty()) throw InputError(asked + ": the folder has no tokenizer files");
  if (const auto tokenizer = try_load_tokenizer(folder)) check_vocabulary(*tokenizer, vocab_size, asked);
  return folder;
}

/// Checks that rounding to fp16 makes nothing infinite.
void check_range(const std::string& name, const at::Tensor& values, at::ScalarType dtype) {
  if (dtype != at::kHalf || values.scalar_type() == at::kHalf) return;
  const auto [least, most] = at::aminmax(values);
  const double largest = std::max(-least.item<double>(), most.item<double>());
  if (largest <= std::numeric_limits<at::Half>::max() || largest == std::numeric_limits<double>::infinity()) return;
  throw InputError(name + " has values up to " + std::to_string(largest) +
                   ", beyond the range of fp16: give --dtype bf16 or fp32");
}

/// The weights of a checkpoint with adapters merged, and those of their base that it lacks.
class MergedWeights {
 public:
  MergedWeights(CheckpointReader& reader, const Manifest& manifest, const Recipe& recipe)
      : reader_(reader), manifest_(manifest), shape_(recipe.model.shape), dtype_(dtype_of(recipe.train.precision)) {
    if (!shape_.adapter) return;
    base_.emplace(open_base(recipe, manifest.head));
    declared_ = std::make_unique<Transformer>(shape_, Parallelism{}, at::TensorOptions(at::kMeta));
    for (const Parameter* parameter : declared_->parameters()) parameters_[parameter->name] = parameter;
  }

  /// `name`: also of the head of a model that is tied.
  at::Tensor read(const std::string& name) {
    const std::string stored = shape_.tie_word_embeddings && name == kHead ? kEmbedding : name;
    const at::Tensor weight = manifest_.tensors.contains(stored) ? reader_.read(stored) : read_base(stored);
    const AdapterNames factors = adapter_names(name);
    if (!manifest_.tensors.contains(factors.a)) return weight;
    return merged(shape_.adapter, name, weight, reader_.read(factors.a), reader_.read(factors.b));
  }

 private:
  /// Returns the weight in the dtype in which the run had it.
  at::Tensor read_base(const std::string& name) const {
    Parameter parameter = *parameters_.at(name);
    parameter.tensor = at::empty(parameter.shape, dtype_in_folder(name, dtype_));
    base_->read(parameter);
    return parameter.tensor;
  }

  CheckpointReader& reader_;
  const Manifest& manifest_;
  ModelShape shape_;
  at::ScalarType dtype_;  // of the layers
  std::optional<FirstWeights> base_;
  std::unique_ptr<Transformer> declared_;
  std::map<std::string, const Parameter*> parameters_;
};

}  // namespace

ExportedCheckpoint export_checkpoint(const fs::path& folder, const fs::path& out, const ExportOptions& options) {
  const Manifest manifest = read_run_manifest(folder);
  Recipe recipe = recipe_of(folder, manifest);
  move_base(recipe, options.base);
  ModelShape shape = shape_to_export(recipe);
  if (adapts_vocabulary(shape.adapter)) shape.tie_word_embeddings = false;  // merged, they are two tensors
  const at::ScalarType dtype = options.dtype.value_or(dtype_of(recipe.train.precision));
  const std::vector<TensorEntry> tensors = tensors_of(folder, manifest, shape, dtype);

  ExportedCheckpoint exported{manifest.head.state.step, dtype, tensors.size(), 0, {}};
  if (options.tokenizer.empty()) check_tokenizer(recipe);
  exported.carried = carried_over(recipe);
  if (!options.tokenizer.empty()) exported.carried.tokenizer = tokenizer_folder(options.tokenizer, shape.vocab_size);
  FolderWriter writer(out, shape, exported.carried, tensors, options.max_file_bytes);
  CheckpointReader reader(folder, manifest);
  MergedWeights weights(reader, manifest, recipe);
  Progress progress("export to " + out.string(), total_bytes(tensors), "bytes");
  for (const TensorEntry& tensor : tensors) {
    {
      const at::Tensor values = weights.read(tensor.name);
      check_range(tensor.name, values, dtype);
      writer.write(tensor.name, values);
    }
    return_freed_memory();
    exported.num_bytes += num_bytes(tensor);
    progress.advance(num_bytes(tensor));
  }
  writer.finish();
  return exported;
}

}  // namespace meshtrain
