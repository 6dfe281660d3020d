#include "runtime/program/foreign/foreign_config.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "runtime/program/foreign/conversion.h"
#include "runtime/program/yaml/layers.h"
#include "runtime/program/yaml/suggest.h"

namespace meshtrain {
namespace {

using Keys = std::vector<const char*>;

template <size_t N>
bool has_one_of(const YamlValue& root, const std::array<const char*, N>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return root.find(key) != nullptr; });
}

constexpr std::array<const char*, 3> kOfDeepSpeed = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                                     "zero_optimization"};
constexpr std::array<const char*, 2> kMapsOfDeepSpeed = {"fp16", "bf16"};

/// A trainer whose files are not converted, and keys that they have: one of each group.
struct OtherTrainer {
  const char* name;
  std::vector<Keys> keys;
};
const OtherTrainer kAxolotlKeys = {
    "axolotl", {{"base_model"}, {"sequence_len", "adapter", "lora_r", "num_epochs", "micro_batch_size", "datasets"}}};
const OtherTrainer kAutomodelKeys = {"NeMo Automodel", {{"step_scheduler"}, {"model"}, {"optimizer", "distributed"}}};
const OtherTrainer kOlmoCoreKeys = {"OLMo-core", {{"train_module"}, {"trainer", "data_loader"}}};
const std::vector<OtherTrainer> kOthers = {
    {"LLaMA-Factory", {{"model_name_or_path"}, {"finetuning_type", "cutoff_len", "template"}}},
    {"transformers' TrainingArguments, or of TRL",
     {{"model_name_or_path", "output_dir", "dataset_name", "learning_rate"},
      {"per_device_train_batch_size", "num_train_epochs", "gradient_accumulation_steps", "max_steps"}}},
    {"Megatron-LM (--yaml-cfg)", {{"language_model"}, {"model_parallel"}}},
    {"torchtitan", {{"parallelism", "lr_scheduler"}, {"training", "metrics"}}}};

/// Words for LoRA in the files of other trainers.
constexpr std::array<const char*, 6> kOfLora = {"lora_r",   "lora_alpha", "lora_target_modules", "lora_target_linear",
                                                "use_peft", "peft_config"};

/// Returns the keys of the groups that `root` has, the first of each; empty unless it has one of each.
std::vector<std::string> keys_of_other(const OtherTrainer& other, const YamlValue& root) {
  std::vector<std::string> found;
  for (const Keys& group : other.keys) {
    const auto key = std::ranges::find_if(group, [&](const char* each) { return root.find(each) != nullptr; });
    if (key == group.end()) return {};
    found.emplace_back(*key);
  }
  return found;
}

bool is_of_deepspeed(const YamlValue& root) {
  return has_one_of(root, kOfDeepSpeed) || std::ranges::any_of(kMapsOfDeepSpeed, [&](const char* key) {
           const YamlValue* value = root.find(key);
           return value != nullptr && value->kind == YamlValue::Kind::Map;
         });
}

constexpr std::array<const char*, 5> kOfMegatron = {"--num-layers", "--hidden-size", "--micro-batch-size",
                                                    "--tensor-model-parallel-size", "--train-iters"};

const char* const kForms =
    "recipe --from converts configurations of accelerate (.yaml: it has distributed_type), axolotl (base_model), NeMo "
    "Automodel (step_scheduler), OLMo-core (train_module) and DeepSpeed (.json: it has train_batch_size or "
    "zero_optimization), and text files with the arguments of Megatron-LM (.txt: --num-layers 32 ...) or torchtitan "
    "(--config llama3_8b ...); from PEFT and TRL it converts the LoRA settings";

const char* const kWriteOne =
    "write a recipe as in docs/recipe.md; meshtrain recipe --explain learning_rate, or another key of the file, names "
    "the recipe's key for it";

/// Throws InputError for a file of a trainer that is known and not converted.
void refuse_other_trainers(const std::filesystem::path& file, const YamlValue& root) {
  for (const OtherTrainer& other : kOthers) {
    const std::vector<std::string> keys = keys_of_other(other, root);
    if (keys.empty()) continue;
    throw InputError(file.string() + ": looks like a configuration of " + other.name + " (it has " + joined(keys) +
                     "); such files are not converted: " + kWriteOne + ". " + kForms);
  }
}

bool has_arguments(const std::filesystem::path& file, const std::string& text) {
  const std::string kind = file.extension().string();
  if (kind == ".yaml" || kind == ".yml" || kind == ".json") return false;
  return text.starts_with("#!") || kind == ".sh" || kind == ".txt" || text.find("--config") != std::string::npos ||
         std::ranges::any_of(kOfMegatron, [&](const char* word) { return text.find(word) != std::string::npos; });
}

/// Throws InputError, with the location and what was expected there, unless `text` is JSON. YAML, which values are read
/// as, allows more.
void check_json(const std::string& text, const std::shared_ptr<const YamlSource>& source) try {
  [[maybe_unused]] const auto json = nlohmann::json::parse(text);
} catch (const nlohmann::json::parse_error& error) {
  const std::string before = text.substr(0, error.byte > 0 ? error.byte - 1 : 0), what = error.what();
  const size_t line_break = before.rfind('\n'), reason = what.find("syntax error");
  const YamlLocation location{source, static_cast<int>(1 + std::ranges::count(before, '\n')),
                              static_cast<int>(before.size() - (line_break + 1) + 1)};
  throw InputError(location.text() + ": not valid JSON: " + (reason == std::string::npos ? what : what.substr(reason)));
}

}  // namespace

ConvertedRecipe recipe_from(const std::filesystem::path& file) {
  auto source = std::make_shared<YamlSource>();
  source->name = file.string();
  source->folder = std::filesystem::absolute(file).parent_path();
  const std::string text = read_short_file(file, file.string() + ": ");
  if (file.extension() == ".py") {
    throw InputError(file.string() +
                     ": configurations in Python are not read, because their values are known only when they run (for "
                     "torchtitan, give a .txt file with its arguments, --config llama3_8b ...): " +
                     kForms);
  }
  if (file.extension() == ".toml") {
    throw InputError(file.string() + ": torchtitan's TOML is not read: torchtitan stopped using it in February 2026; " +
                     kWriteOne);
  }
  const auto convert = [&](const char* tool, const YamlValue& root, void (*converter)(Conversion&)) {
    Conversion conversion(tool, root);
    converter(conversion);
    return conversion.recipe(file.filename().string());
  };
  if (has_arguments(file, text)) {
    const YamlValue arguments = parse_arguments(text, source);
    if (is_of_torchtitan(arguments)) return convert("torchtitan", nested_arguments(arguments), convert_torchtitan);
    if (has_one_of(arguments, kOfMegatron)) return convert("Megatron-LM core_v0.19.0", arguments, convert_megatron);
    throw InputError(file.string() + ": has no arguments of Megatron-LM or torchtitan: " + kForms);
  }
  if (file.extension() == ".json") check_json(text, source);
  const YamlValue root = parse_yaml(text, source);
  if (root.kind != YamlValue::Kind::Map) {
    throw InputError(file.string() + ": a configuration is a map of keys, not " + root.shown() + ": " + kForms);
  }
  if (root.find("train") != nullptr && root.find("model") != nullptr) {
    throw InputError(file.string() + ": this is already a meshtrain recipe");
  }
  const bool is_of_launcher = root.find("distributed_type") != nullptr || root.find("compute_environment") != nullptr;
  if (root.find("peft_type") != nullptr) return convert("PEFT 0.21.2", root, convert_peft);
  if (!is_of_launcher) {
    if (!keys_of_other(kAxolotlKeys, root).empty()) return convert("axolotl 0.13", root, convert_axolotl);
    if (!keys_of_other(kAutomodelKeys, root).empty()) return convert("NeMo Automodel", root, convert_automodel);
    if (!keys_of_other(kOlmoCoreKeys, root).empty()) return convert("OLMo-core", root, convert_olmo_core);
    if (has_one_of(root, kOfLora)) return convert("TRL", root, convert_trl_adapter);
  }
  if (!is_of_launcher && !is_of_deepspeed(root)) refuse_other_trainers(file, root);  // they may have fsdp_config
  if (is_of_launcher) return convert("accelerate 1.14.0", root, convert_accelerate);
  if (is_of_deepspeed(root)) return convert("DeepSpeed 0.19.5", root, convert_deepspeed);
  throw InputError(file.string() + ": this is not a configuration of a known trainer: " + kForms);
}

}  // namespace meshtrain
