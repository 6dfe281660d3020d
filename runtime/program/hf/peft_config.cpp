#include "runtime/program/hf/peft_config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/download.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/config_reader.h"
#include "runtime/program/hf/peft_ranks.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/model/transformer.h"

namespace meshtrain {
namespace {

constexpr std::string_view kLayers = "model.layers.";

/// A choice of layers: names of layers in all of the blocks, or complete names of layers.
struct Selection {
  std::vector<std::string> names;
  std::vector<int64_t> blocks;  // empty: all
};

std::string last_name(const std::string& layer) {
  return layer.substr(layer.rfind('.') + 1);
}

/// Returns the shortest selection of exactly `layers`, of a model with `num_blocks` blocks. With a choice of blocks no
/// layer outside blocks is selected.
Selection select(const std::vector<std::string>& layers, int64_t num_blocks) {
  std::vector<std::string> names, outside;  // names of layers in blocks, layers outside
  std::set<int64_t> blocks;
  for (const std::string& layer : layers) {
    if (!layer.starts_with(kLayers)) {
      outside.push_back(last_name(layer));
      continue;
    }
    if (!std::ranges::count(names, last_name(layer))) names.push_back(last_name(layer));
    blocks.insert(std::stoll(layer.substr(kLayers.size())));
  }
  const bool in_all = blocks.empty() || static_cast<int64_t>(blocks.size()) == num_blocks;
  if (names.size() * blocks.size() + outside.size() != layers.size() || (!in_all && !outside.empty())) {
    return {layers, {}};
  }
  names.insert(names.end(), outside.begin(), outside.end());
  return {names, in_all ? std::vector<int64_t>() : std::vector<int64_t>(blocks.begin(), blocks.end())};
}

/// Returns alpha of a module of `num_parts` layers whose scale is that of each layer: the module's rank is as many
/// times larger.
double alpha_of(const AdapterShape& adapter, int64_t num_parts) {
  const auto times = static_cast<double>(num_parts);
  return adapter.alpha * (adapter.use_rslora ? std::sqrt(times) : times);
}

nlohmann::ordered_json number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e9) return static_cast<int64_t>(value);
  return value;
}

/// Refuses what our adapters cannot be.
void check_kind(ConfigReader& config) {
  const auto refuse = [&](const std::string& key, const std::string& reason) {
    config.fail(key, "is " + shown(config.value(key)) + ": " + reason);
  };
  if (!config.has("peft_type") || config.value("peft_type") != "LORA") {
    config.fail("peft_type", "is not LORA: other adapters are not supported");
  }
  if (config.boolean_or("use_dora", false)) refuse("use_dora", "DoRA is not supported");
  if (config.boolean_or("use_qalora", false)) refuse("use_qalora", "QALoRA is not supported");
  if (config.boolean_or("lora_bias", false)) refuse("lora_bias", "adapters have no biases");
  if (config.boolean_or("fan_in_fan_out", false)) refuse("fan_in_fan_out", "no supported model has such layers");
  if (config.has("bias") && config.value("bias") != "none") refuse("bias", "biases are not trained with adapters");
  for (const char* key :
       {"layer_replication", "trainable_token_indices", "target_parameters", "alora_invocation_tokens", "arrow_config",
        "use_bdlora", "kasa_config", "monteclora_config", "velora_config"}) {
    if (config.has(key) && !config.value(key).empty() && config.value(key) != false) refuse(key, "not supported");
  }
  if (!config.has("init_lora_weights")) return;
  const nlohmann::json& init = config.value("init_lora_weights");
  if (init.is_boolean() || init == "gaussian" || init == "eva" || init == "orthogonal") return;
  refuse("init_lora_weights",
         "it changes the base, whose changed weights are not in the folder: have PEFT convert the "
         "adapter (save_pretrained with path_initial_model_for_weight_conversion)");
}

/// Returns the modules of `base` that have an adapter in `file`, in the order of the model, with all of their layers.
/// Throws InputError when there are none, and for a tensor of another adapter.
std::vector<PeftModule> found_modules(const SafetensorsFile& file, const ModelShape& base, int64_t rank) {
  ModelShape shape = base;
  shape.adapter = {.rank = rank, .targets = {"all-linear", kEmbeddingLayer, kHeadLayer}};
  std::vector<PeftModule> modules = peft_modules(shape);
  std::set<std::string> found;
  const std::string prefix = kPeftPrefix;
  for (const TensorEntry& entry : file.entries()) {
    const auto refuse = [&](const std::string& what) {
      throw InputError(file.path().string() + ": " + entry.name + what);
    };
    if (!entry.name.starts_with(prefix)) refuse(" does not begin with " + prefix);
    const std::string name = entry.name.substr(prefix.size());
    const size_t factor = name.find(".lora_");
    if (factor == std::string::npos) continue;
    if (!is_adapter(name)) refuse(" is not a factor of an adapter of a linear layer or the embedding");
    const std::string module = name.substr(0, factor);
    if (found.insert(module).second && std::ranges::find(modules, module, &PeftModule::name) == modules.end()) {
      refuse(" belongs to no layer of the model that may have an adapter");
    }
  }
  std::erase_if(modules, [&](const PeftModule& module) { return !found.contains(module.name); });
  if (modules.empty()) throw InputError(file.path().string() + ": has no adapter");
  return modules;
}

/// Returns the layers that have an adapter of `rank` in `module`. If there are several adapters in the module, the rows
/// of each layer's B are on the diagonal of B; one adapter is that of all layers.
std::vector<std::string> adapted_layers(const SafetensorsFile& file, const PeftModule& module, int64_t rank) {
  std::vector<std::string> layers;
  const std::vector<int64_t>& shape = file.entry(module.b()).shape;
  const int64_t count = file.entry(module.a()).shape[0] / rank, num_parts = static_cast<int64_t>(module.parts.size());
  if (count == 1 || count == num_parts || shape != std::vector<int64_t>{module.out_features, count * rank}) {
    for (const PeftModule::Part& part : module.parts) layers.push_back(part.layer);
    return layers;
  }
  const at::Tensor b = file.read(module.b());
  for (const PeftModule::Part& part : module.parts) {
    const auto column = static_cast<int64_t>(layers.size()) * rank;
    if (column == count * rank) break;
    const at::Tensor rows = b.narrow(0, part.first_row, part.rows).narrow(1, column, rank);
    if (rows.count_nonzero().item<int64_t>() > 0) layers.push_back(part.layer);
  }
  if (static_cast<int64_t>(layers.size()) == count) return layers;
  throw InputError(file.path().string() + ": " + module.b() + " has columns for " + std::to_string(count) + " of " +
                   std::to_string(num_parts) + " layers, but its values do not show which");
}

/// Throws InputError when the head and the embedding of `file` are two, and one in the model.
void check_tied(const SafetensorsFile& file, const ModelShape& base) {
  const std::string embedding = std::string(kPeftPrefix) + kEmbedding, head = std::string(kPeftPrefix) + kHead;
  const bool has_embedding = file.contains(embedding), has_head = file.contains(head);
  if (!base.tie_word_embeddings || (!has_embedding && !has_head)) return;
  if (has_embedding && has_head && at::equal(file.read(embedding), file.read(head))) return;
  throw InputError(file.path().string() + ": " + (has_head ? head : embedding) + " was trained separately from the " +
                   (has_head ? "embedding" : "head") +
                   ", which is the same tensor in the base: train both as one (ensure_weight_tying of PEFT), or merge "
                   "the adapter with PEFT (merge_and_unload)");
}

}  // namespace

AdapterShape read_peft_folder(const std::filesystem::path& folder, const ModelShape& base) {
  if (!has_entry(folder / kPeftConfig)) {
    throw InputError("there is no " + std::string(kPeftConfig) + " in " + folder.string() +
                     ": give the folder of an adapter that PEFT or meshtrain checkpoint export --adapter wrote");
  }
  if (!has_entry(folder / kPeftWeights)) {
    throw InputError("there is no " + std::string(kPeftWeights) + " in " + folder.string() +
                     ": save the adapter with safetensors (save_pretrained of PEFT)");
  }
  ConfigReader config(folder / kPeftConfig);
  check_kind(config);
  AdapterShape adapter{.rank = config.integer("r"),
                       .alpha = config.number_or("lora_alpha", 8),
                       .use_rslora = config.boolean_or("use_rslora", false)};
  if (config.has("lora_dropout") && config.value("lora_dropout") != 0) {
    adapter.dropout = config.number("lora_dropout");
    if (adapter.dropout >= 1) config.fail("lora_dropout", "is not below 1");
  }
  const SafetensorsFile file(folder / kPeftWeights);
  const std::vector<PeftModule> modules = found_modules(file, base, adapter.rank);
  take_peft_ranks(config, file, modules, adapter);
  if (base.tie_word_embeddings && config.boolean_or("ensure_weight_tying", false)) {
    const auto is_end = [](const PeftModule& module) {
      return module.name == kEmbeddingLayer || module.name == kHeadLayer;
    };
    if (std::ranges::any_of(modules, is_end)) {
      config.fail("ensure_weight_tying", "is true: adapters of a tied embedding and its head must be separate");
    }
  }
  std::vector<std::string> layers;
  for (const PeftModule& module : modules) {
    for (std::string& layer : adapted_layers(file, module, adapter.rank)) layers.push_back(std::move(layer));
  }
  Selection selection = select(layers, base.num_hidden_layers);
  adapter.targets = std::move(selection.names);
  adapter.layers = std::move(selection.blocks);
  check_tied(file, base);
  adapter.train = base_parameters_of_peft(file, base);
  std::ranges::sort(adapter.train);
  return adapter;
}

std::string describe_other_base_name(const std::filesystem::path& adapter, const std::filesystem::path& base) {
  ConfigReader config(adapter / kPeftConfig);
  if (!config.has("base_model_name_or_path") || !config.value("base_model_name_or_path").is_string()) return "";
  const std::string named = config.value("base_model_name_or_path");
  const auto last = [](const std::filesystem::path& path) {
    return (path.has_filename() ? path : path.parent_path()).filename();
  };
  if (named.empty() || last(named) == last(std::filesystem::absolute(base))) return "";
  return (adapter / kPeftConfig).string() + " says that the adapters belong to " + named + ", but they are used with " +
         base.string() + ": with other weights the results are wrong, and no check can detect it";
}

std::string write_peft_config(const ModelShape& shape, const std::vector<std::string>& trained,
                              const std::string& base) {
  const AdapterShape& adapter = shape.adapter;
  const std::vector<PeftModule> modules = peft_modules(shape);
  std::vector<std::string> names;
  for (const PeftModule& module : modules) names.push_back(module.name);
  const Selection selection = select(names, shape.num_hidden_layers);
  nlohmann::ordered_json ranks = nlohmann::ordered_json::object(), alphas = ranks;
  for (const PeftModule& module : modules) {
    if (module.parts.size() < 2) continue;
    const auto count = static_cast<int64_t>(module.parts.size());
    ranks[module.name] = count * adapter.rank;
    alphas[module.name] = number(alpha_of(adapter, count));
  }
  nlohmann::ordered_json config;
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = base.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(base);
  config["r"] = adapter.rank;
  config["lora_alpha"] = number(adapter.alpha);
  config["lora_dropout"] = adapter.dropout;
  config["use_rslora"] = adapter.use_rslora;
  config["target_modules"] = selection.names;
  config["layers_to_transform"] =
      selection.blocks.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(selection.blocks);
  config["modules_to_save"] = trained.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(trained);
  config["rank_pattern"] = ranks;
  config["alpha_pattern"] = alphas;
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  if (adapter.init == AdapterShape::Init::Gaussian) {
    config["init_lora_weights"] = "gaussian";
  } else {
    config["init_lora_weights"] = true;
  }
  return config.dump(2) + "\n";
}

}  // namespace meshtrain
