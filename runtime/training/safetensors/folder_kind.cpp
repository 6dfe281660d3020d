#include "runtime/training/safetensors/folder_kind.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "mesh/base/files/download.h"
#include "mesh/base/files/glob.h"
#include "mesh/base/files/shell_word.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

/// The names in a folder.
class Names {
 public:
  explicit Names(const fs::path& folder) {
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      names_.push_back(entry->path().filename());
    }
    std::ranges::sort(names_);
  }

  /// Returns the last of the names that match; an empty text when none does.
  std::string last(const char* glob) const {
    const auto found =
        std::find_if(names_.rbegin(), names_.rend(), [&](const std::string& name) { return matches(glob, name); });
    return found == names_.rend() ? "" : *found;
  }
  bool has(const char* glob) const { return !last(glob).empty(); }
  /// Returns a name whose download has not ended; an empty text when there is none.
  std::string unfinished() const {
    const auto found = std::ranges::find_if(names_, [](const auto& name) { return is_unfinished_download(name); });
    return found == names_.end() ? "" : *found;
  }

 private:
  std::vector<std::string> names_;
};

/// Describes a folder of a known kind that lacks a model's safetensors, with the way to get them. Returns an empty text
/// for other folders.
std::string describe_kind(const fs::path& folder) {
  const Names names(folder);
  const std::string path = folder.string();
  const auto python = [&](const std::string& module, const std::string& name, const std::string& calls,
                          const std::string& made) {
    return "python3 -c \"from " + module + " import " + name + " as M; M.from_pretrained('" + path + "'" + calls +
           ".save_pretrained('" + made + "')\"";
  };
  if (names.has("adapter_config.json") || names.has("adapter_model.*")) {
    return "it is a PEFT adapter: give the folder of its model, and this one in addition, in a recipe as "
           "adapter.from: " +
           path + ", for generate and evaluate as --adapter " + path;
  }
  if (names.has("manifest.json") || Names(folder / "checkpoints").has("step-*")) {
    return "it belongs to a meshtrain run: meshtrain checkpoint export " + path + " FOLDER makes one";
  }
  if (names.has("latest_checkpointed_iteration.txt") || names.has("mp_rank_*") || names.has("common.pt")) {
    return "it is a checkpoint of Megatron-LM: convert it with Megatron Bridge (AutoBridge.export_ckpt)";
  }
  if (names.has("zero_to_fp32.py")) {
    return "it is a checkpoint of DeepSpeed: python3 " + (folder / "zero_to_fp32.py").string() + " " + path +
           " FOLDER --safe_serialization writes its weights: put config.json there too";
  }
  if (names.has("*.distcp")) {
    return "it is a distributed checkpoint of PyTorch (DCP): if accelerate wrote it, run accelerate merge-weights " +
           path + " FOLDER, else export it with the trainer that wrote it";
  }
  if (names.has("snapshots") && names.has("blobs")) {
    const std::string newest = Names(folder / "snapshots").last("*");
    return "it belongs to the cache of the Hugging Face hub: name " + (folder / "snapshots" / newest).string();
  }
  if (names.has("checkpoint-*")) {
    return "it has the checkpoints of a run: give one, such as " + (folder / names.last("checkpoint-*")).string();
  }
  if (names.has("pytorch_model*.bin*")) {
    return "it has PyTorch pickles, " + names.last("pytorch_model*.bin*") + ": " +
           python("transformers", "AutoModelForCausalLM", ", torch_dtype='auto')", path + "-safetensors") +
           " writes safetensors: name that folder, and put the tokenizer's files there";
  }
  if (names.has("params.json") || names.has("consolidated.*")) {
    return "it has the model in its publisher's own format: take the folder for transformers, with config.json and "
           "model.safetensors";
  }
  if (names.has("*.gguf")) {
    return "it has " + names.last("*.gguf") + ", of llama.cpp: take the folder of the model from which it was made";
  }
  if (names.has("tf_model.h5") || names.has("flax_model.msgpack")) {
    return "it has weights of TensorFlow or Flax: save_pretrained() of transformers 4 (from_tf=True, from_flax=True) "
           "writes safetensors";
  }
  if (names.has("model-*-of-*.safetensors")) return "the index of its files is missing: finish the download";
  const fs::path hub = unfinished_hub_download(folder);
  const std::string open = hub.empty() ? names.unfinished() : hub.lexically_relative(folder).string();
  return open.empty() ? "" : "its download is not complete, as " + open + " shows: run it again";
}

/// `advice`: what to do when the folder is not of a known kind.
std::string with_kind(const std::string& text, const fs::path& folder, const std::string& advice = "") {
  const std::string kind = describe_kind(folder), end = kind.empty() ? advice : kind;
  return text + (end.empty() ? "" : ": " + end);
}

/// Returns a path that does not exist as a name on the hub, when it looks like one; otherwise "ORG/NAME".
std::string hub_name(const fs::path& path) {
  std::error_code ignored;
  const fs::path above = fs::absolute(path).parent_path();
  const bool is_like = above.has_filename() && !fs::exists(above, ignored) && fs::exists(above.parent_path(), ignored);
  return is_like ? (above.filename() / path.filename()).string() : "ORG/NAME";
}

}  // namespace

std::string describe_no_model(const fs::path& path, const std::string& advice) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    const std::string dangling = describe_dangling(path);
    if (!dangling.empty()) return "cannot read " + path.string() + ": " + dangling;
    return "there is no folder " + path.string() + ": meshtrain does not download models, but hf download " +
           hub_name(path) + " --local-dir " + shell_word(path.string()) + " fetches a model of the Hugging Face hub";
  }
  if (!fs::is_directory(path, ignored)) return path.string() + " is a file: name the folder of the model";
  return has_entry(path / "config.json") ? "" : with_kind("there is no config.json in " + path.string(), path, advice);
}

bool has_weights(const fs::path& folder) {
  return has_entry(folder / "model.safetensors") || has_entry(folder / "model.safetensors.index.json");
}

std::string describe_no_weights(const fs::path& folder, const std::string& advice) {
  return with_kind("there is no model.safetensors, nor its index, in " + folder.string(), folder, advice);
}

}  // namespace meshtrain
