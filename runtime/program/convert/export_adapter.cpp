#include "runtime/program/convert/export_adapter.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/export_folder.h"
#include "runtime/program/hf/peft_config.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/safetensors/writer.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_trained(const std::string& name, const std::string& reason) {
  throw InputError("--adapter: " + name + " of the base was trained too, and PEFT saves complete modules: " + reason +
                   "; leave --adapter out, which writes the merged model");
}

/// Returns the modules of the base that the recipe trains, in the order of the model. Throws InputError for one that
/// PEFT cannot save.
std::vector<std::string> trained_modules(const Recipe& recipe) {
  const ModelShape& shape = recipe.model.shape;
  std::set<std::string> adapted;
  for (const PeftModule& module : peft_modules(shape)) {
    for (const PeftModule::Part& part : module.parts) adapted.insert(part.layer);
  }
  std::vector<std::string> modules;
  std::map<std::string, std::string> frozen;  // by module, one of its parameters
  const std::vector<TensorEntry> tensors = declared_tensors(shape, at::kFloat);
  for (const TensorEntry& tensor : tensors) {
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    if (!is_trained(shape.adapter, recipe.train.freeze, tensor.name)) {
      frozen[module] = tensor.name;
      continue;
    }
    if (adapted.contains(module)) refuse_trained(tensor.name, "its layer has an adapter");
    const std::vector<FolderTensor> stored = folder_parts(shape, tensor.name, tensor.shape);
    if (of_experts(tensor.name)) refuse_trained(tensor.name, "it belongs to experts");
    if (stored.front().name != tensor.name) {
      refuse_trained(tensor.name, "transformers joins it with other layers in one module");
    }
    if (shape.tie_word_embeddings && tensor.name == kEmbedding) {
      refuse_trained(tensor.name, "it is also the head, and PEFT would make it two tensors");
    }
    if (!std::ranges::count(modules, module)) modules.push_back(module);
  }
  for (const std::string& module : modules) {
    if (frozen.contains(module)) refuse_trained(module, frozen.at(module) + " was not trained");
  }
  return modules;
}

/// Returns the factors of a module: A of its layers one after the other, and their B on a diagonal.
std::pair<at::Tensor, at::Tensor> join(const PeftModule& module, CheckpointReader& reader) {
  std::vector<at::Tensor> all_a, all_b;
  for (const PeftModule::Part& part : module.parts) {
    const AdapterNames names = adapter_names(part.layer + ".weight");
    all_a.push_back(reader.read(names.a));
    all_b.push_back(reader.read(names.b));
  }
  if (module.is_embedding()) return {all_a.front().t().contiguous(), all_b.front()};
  if (module.out_features == module.parts.front().rows) return {all_a.front(), all_b.front()};
  const at::Tensor a = at::cat(all_a);
  at::Tensor b = at::zeros({module.out_features, a.size(0)}, a.options());
  int64_t column = 0;
  for (size_t i = 0; i < all_b.size(); ++i) {
    const PeftModule::Part& part = module.parts[i];
    b.narrow(0, part.first_row, part.rows).narrow(1, column, all_b[i].size(1)).copy_(all_b[i]);
    column += all_b[i].size(1);
  }
  return {a, b};
}

}  // namespace

ExportedAdapter export_adapter(const fs::path& folder, const fs::path& out, std::optional<at::ScalarType> dtype) {
  const Manifest manifest = read_run_manifest(folder);
  const Recipe recipe = parse_recipe(manifest.head.recipe);
  const ModelShape& shape = recipe.model.shape;
  if (!shape.adapter) {
    throw InputError("--adapter: the run of " + folder.string() +
                     " has no adapters: leave --adapter out, which writes the model");
  }
  const std::vector<std::string> trained = trained_modules(recipe);
  CheckpointReader reader(folder, manifest);
  std::map<std::string, at::Tensor> tensors;
  for (const PeftModule& module : peft_modules(shape))
    std::tie(tensors[module.a()], tensors[module.b()]) = join(module, reader);
  for (const TensorEntry& tensor : declared_tensors(shape, at::kFloat)) {
    if (is_trained(shape.adapter, recipe.train.freeze, tensor.name))
      tensors[kPeftPrefix + tensor.name] = reader.read(tensor.name);
  }
  ExportedAdapter exported{manifest.head.state.step, tensors.size(), 0};
  std::vector<TensorEntry> entries;
  for (const auto& [name, values] : tensors) {
    entries.push_back({name, dtype.value_or(values.scalar_type()), values.sizes().vec()});
    exported.num_bytes += num_bytes(entries.back());
  }
  ExportFolder target(out);
  target.begin();
  try {
    const fs::path base = recipe.model.init == "pretrained" ? recipe.model.hf : fs::path();  // else no folder has it
    write_atomically(target.partial() / kPeftConfig, write_peft_config(shape, trained, base));
    SafetensorsWriter writer(target.partial() / kPeftWeights, entries);
    for (const auto& [name, values] : tensors) writer.write(name, values);
    writer.finish();
  } catch (...) {
    target.discard();
    throw;
  }
  target.complete();
  return exported;
}

}  // namespace meshtrain
