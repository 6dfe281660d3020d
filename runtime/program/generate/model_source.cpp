#include "runtime/program/generate/model_source.h"

#include <map>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "mesh/base/files/checksum.h"
#include "mesh/base/files/download.h"
#include "mesh/base/files/json_object.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/program/hf/peft_config.h"
#include "runtime/program/recipe/base_weights.h"
#include "runtime/program/recipe/exported_model.h"
#include "runtime/program/recipe/load.h"
#include "runtime/text/tokenizer/json_cursor.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/checkpoint/inspect.h"
#include "runtime/training/model/first_weights.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/load.h"
#include "runtime/training/model/unused_weights.h"
#include "runtime/training/safetensors/folder_kind.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& file) {
  std::error_code unreadable;
  return fs::exists(file, unreadable);
}

std::string precision_of(at::ScalarType dtype) {
  static const std::map<at::ScalarType, std::string> names = {
      {at::kDouble, "fp64"}, {at::kFloat, "fp32"}, {at::kBFloat16, "bf16"}, {at::kHalf, "fp16"}};
  const auto found = names.find(dtype);
  return found == names.end() ? "fp32" : found->second;
}

ModelSource of_hugging_face(const fs::path& folder) {
  ModelSource source;
  source.folder = source.hugging_face = folder;
  source.shape = read_config_json(folder / "config.json");
  source.precision = precision_of(open_weights(folder, source.shape).entry(kEmbedding).dtype);
  return source;
}

ModelSource of_checkpoint(const fs::path& folder, const fs::path& base) {
  const CheckpointHead head = read_run_manifest(folder).head;
  Recipe recipe = parse_recipe(head.recipe);
  move_base(recipe, base);
  const std::string& precision = recipe.train.precision;
  ModelSource source;
  source.folder = folder;
  source.base = base;
  source.hugging_face = recipe.model.hf;
  source.is_checkpoint = true;
  source.step = head.state.step;
  source.tokenizer = recipe.data.tokenizer;
  if (const auto print = head.data.find(kTokenizerKey); print != head.data.end()) {
    source.tokenizer_checksum = print->second.checksum;
  }
  source.trained_length = recipe.train.sequence_length;
  source.shape = recipe.model.shape;
  source.document_end = document_end(recipe.data);
  source.precision = precision.substr(0, precision.find('_'));
  return source;
}

/// Returns eos_token_id of `file`: an id, or a list.
std::vector<int64_t> eos_in(const fs::path& file) {
  if (!has_entry(file)) return {};
  const nlohmann::json document = read_json_object(file.string());
  const std::optional<JsonCursor> found = JsonCursor(file.string(), document).find("eos_token_id");
  if (!found) return {};
  if (!found->value().is_array()) return {found->id()};
  std::vector<int64_t> ids;
  for (size_t i = 0; i < found->size(); ++i) ids.push_back(found->at(i).id());
  return ids;
}

}  // namespace

fs::path find_model(const fs::path& path) {
  if (has_entry(path / "config.json")) return path;
  fs::path folder;
  try {
    folder = find_checkpoint(path);
  } catch (const InputError&) {
    throw InputError(
        describe_no_model(path,
                          "give a Hugging Face folder, a checkpoint's folder, which has a manifest.json, or the "
                          "directory of a run that has written one (checkpoint.every)"));
  }
  if (is_there(folder / "manifest.json")) return folder;
  const std::string others = CheckpointFolder(folder.parent_path()).describe_others(folder);
  throw InputError("the checkpoint " + folder.string() + " has no manifest.json: it is damaged" +
                   (others.empty() ? ", and its folder has no other checkpoint"
                                   : "; its folder also has checkpoints of " + others + ": give one of these"));
}

ModelSource read_model_source(const fs::path& folder, const OtherFolders& others) {
  const fs::path& adapter = others.adapter;
  const bool is_checkpoint = !has_entry(folder / "config.json");
  if (!is_checkpoint && !others.base.empty()) {
    throw InputError("--base: " + folder.string() + " is a Hugging Face folder, which has all weights: leave it out");
  }
  ModelSource source = is_checkpoint ? of_checkpoint(folder, others.base) : of_hugging_face(folder);
  if (adapter.empty()) return source;
  const std::string option = "--adapter " + adapter.string() + ": ";
  if (is_checkpoint) {
    throw InputError(option + folder.string() +
                     " is a checkpoint, which has its own adapters or none: give the folder of the base");
  }
  try {
    source.shape.adapter = read_peft_folder(adapter, source.shape);
  } catch (const InputError& error) {
    throw InputError(option + error.what());
  }
  source.shape.adapter.from = adapter;
  source.shape.adapter.dropout = 0;
  return source;
}

std::string tokenizer_of(const ModelSource& source) {
  if (source.tokenizer == "bytes" || is_there(source.tokenizer)) return source.tokenizer;
  return tokenizer_file_in(source.hugging_face).empty() ? "" : source.hugging_face.string();
}

std::string describe_other_tokenizer(const ModelSource& source, const std::string& name) {
  if (!source.tokenizer_checksum || checksum_of_text(tokenizer_fingerprint(name)) == source.tokenizer_checksum)
    return {};
  return "the tokenizer " + name + " is not the run's: the checksum of the run's tokenizer was " +
         checksum_text(*source.tokenizer_checksum);
}

std::string describe_missing(const ModelSource& source) {
  if (!source.tokenizer.empty() && source.tokenizer != "bytes" && !is_there(source.tokenizer)) {
    return "data.tokenizer of the run's recipe, " + source.tokenizer.string() + ", no longer exists";
  }
  if (source.hugging_face.empty() || is_there(source.hugging_face)) return {};
  return "model.hf of the run's recipe, " + source.hugging_face.string() + ", no longer exists";
}

std::vector<std::string> weight_warnings(const ModelSource& source) {
  if (source.is_checkpoint) return {};
  std::vector<std::string> warnings = weight_warnings(open_weights(source.folder, source.shape), source.shape);
  if (source.shape.adapter.from.empty()) return warnings;
  const std::string other = describe_other_base_name(source.shape.adapter.from, source.folder);
  if (!other.empty()) warnings.push_back(other);
  return warnings;
}

std::vector<int64_t> stop_tokens(const ModelSource& source, const Tokenizer* tokenizer) {
  for (const char* file : {"generation_config.json", "config.json"}) {
    if (source.hugging_face.empty()) break;
    std::vector<int64_t> ids = eos_in(source.hugging_face / file);
    if (!ids.empty()) return ids;
  }
  if (tokenizer != nullptr && tokenizer->eos()) return {*tokenizer->eos()};
  if (source.document_end) return {*source.document_end};
  return {};
}

class ModelWeights::Reader {
 public:
  virtual ~Reader() = default;
  virtual void read(const Parameter& parameter) = 0;
};

class ModelWeights::FolderReader final : public Reader {
 public:
  explicit FolderReader(const ModelSource& source) : weights_(source.folder, source.shape, /*seed=*/0) {}
  void read(const Parameter& parameter) override { weights_.read(parameter); }

 private:
  FirstWeights weights_;
};

class ModelWeights::CheckpointPieces final : public Reader {
 public:
  explicit CheckpointPieces(const ModelSource& source)
      : manifest_(read_run_manifest(source.folder)), pieces_(source.folder, manifest_) {
    Recipe recipe = parse_recipe(manifest_.head.recipe);
    move_base(recipe, source.base);
    if (recipe.model.shape.adapter) base_.emplace(open_base(recipe, manifest_.head));
  }
  void read(const Parameter& parameter) override {
    if (base_ && !manifest_.tensors.contains(parameter.name)) return base_->read(parameter);
    pieces_.read({parameter.name, parameter.global_shape, parameter.box, parameter.valid().detach()});
  }

 private:
  Manifest manifest_;
  CheckpointReader pieces_;
  std::optional<FirstWeights> base_;  // has the frozen weights of a model with adapters
};

ModelWeights::ModelWeights(const ModelSource& source) {
  if (source.is_checkpoint) {
    reader_ = std::make_unique<CheckpointPieces>(source);
  } else {
    reader_ = std::make_unique<FolderReader>(source);
  }
}

ModelWeights::~ModelWeights() = default;

void ModelWeights::read(const Parameter& parameter) {
  reader_->read(parameter);
}

}  // namespace meshtrain
