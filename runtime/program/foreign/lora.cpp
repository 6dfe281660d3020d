#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/foreign_config.h"
#include "runtime/program/yaml/scalar_text.h"

namespace meshtrain {
namespace {

/// One tool's words for LoRA, and its defaults. An empty word: the tool has none.
struct LoraWords {
  std::string rank, alpha, dropout, targets, saved, rslora, dora;
  std::string all_linear = {}, layers = {}, init = {}, folder = {};
  std::optional<int64_t> usual_rank = {}, usual_alpha = {};  // none: it must be given
  double usual_dropout = 0;
};

const LoraWords kPeft = {.rank = "r",
                         .alpha = "lora_alpha",
                         .dropout = "lora_dropout",
                         .targets = "target_modules",
                         .saved = "modules_to_save",
                         .rslora = "use_rslora",
                         .dora = "use_dora",
                         .layers = "layers_to_transform",
                         .init = "init_lora_weights",
                         .usual_rank = 8,
                         .usual_alpha = 8};
const LoraWords kAxolotl = {.rank = "lora_r",
                            .alpha = "lora_alpha",
                            .dropout = "lora_dropout",
                            .targets = "lora_target_modules",
                            .saved = "lora_modules_to_save",
                            .rslora = "peft_use_rslora",
                            .dora = "peft_use_dora",
                            .all_linear = "lora_target_linear",
                            .layers = "peft_layers_to_transform",
                            .init = "peft_init_lora_weights",
                            .folder = "lora_model_dir"};
const LoraWords kTrl = {.rank = "lora_r",
                        .alpha = "lora_alpha",
                        .dropout = "lora_dropout",
                        .targets = "lora_target_modules",
                        .saved = "lora_modules_to_save",
                        .rslora = "use_rslora",
                        .dora = "use_dora",
                        .usual_rank = 16,
                        .usual_alpha = 32,
                        .usual_dropout = 0.05};

const char* const kNoQlora = "QLoRA is not supported: the base is kept in the dtype of train.precision";

/// PEFT matches the end of a module's name.
std::string target_pattern(const std::string& name) {
  return name.find('.') == std::string::npos || name.starts_with("model.") ? name : "*." + name;
}

void take_targets(Conversion& from, const std::string& path, const std::string& all_linear) {
  const std::vector<std::string> names = from.list(path);
  const auto is_fused = [](const std::string& name) {
    return name.ends_with("qkv_proj") || name.ends_with("gate_up_proj");
  };
  const bool takes_all = (!all_linear.empty() && from.truth(all_linear).value_or(false)) ||
                         (names.size() == 1 && names[0] == "all-linear");
  std::vector<std::string> targets;
  for (const std::string& name : names) {
    if (is_fused(name)) {
      from.refuse(path,
                  "PEFT has one adapter for the joined layers, meshtrain one for each layer: name them in "
                  "adapter.targets");
    } else if (name.find_first_of("*[]()|^$\\+?") != std::string::npos) {
      from.refuse(path, "regular expressions are not converted: give adapter.targets names of layers, or patterns");
    } else if (name != "all-linear") {
      targets.push_back(target_pattern(name));
    }
  }
  if (takes_all) targets.insert(targets.begin(), "all-linear");
  if (!targets.empty()) {
    from.set("adapter.targets", scalar_text(targets));
  } else {
    from.need("adapter.targets", "the layers with adapters; PEFT chooses q_proj and v_proj for most models");
  }
}

/// Takes the modules that are trained completely.
void take_saved(Conversion& from, const std::string& path) {
  std::vector<std::string> patterns;
  for (const std::string& name : from.list(path)) patterns.push_back("*" + name + ".*");
  if (!patterns.empty()) from.set("adapter.train", scalar_text(patterns));
}

void take_init(Conversion& from, const std::string& path) {
  const std::string init = from.word(path).value_or("true");
  if (init == "gaussian") from.set("adapter.init", init);
  if (init != "gaussian" && init != "true" && init != "True") {
    from.refuse(path, "adapter.init has kaiming and gaussian");
  }
}

void refuse_quantization(Conversion& from, const std::string& prefix) {
  for (const char* bits : {"load_in_4bit", "load_in_8bit"}) from.refuse(prefix + bits, kNoQlora);
}

/// Takes the keys of the section `adapter`. `prefix`: of the words, "peft_config." or empty.
void take_lora(Conversion& from, const LoraWords& words, const std::string& prefix) {
  const auto path = [&](const std::string& word) { return prefix + word; };
  const auto set_whole = [&](const std::string& key, const std::string& word, std::optional<int64_t> usual) {
    const std::optional<int64_t> value = from.whole(path(word));
    if (!value && !usual) return from.need(key, "the configuration has no " + path(word));
    from.set(key, value.value_or(usual.value_or(0)), value ? "" : from.by_default());
  };
  set_whole("adapter.rank", words.rank, words.usual_rank);
  set_whole("adapter.alpha", words.alpha, words.usual_alpha);
  const double dropout = from.number(path(words.dropout)).value_or(words.usual_dropout);
  if (dropout > 0) from.set("adapter.dropout", dropout, from.has(path(words.dropout)) ? "" : from.by_default());
  take_targets(from, path(words.targets), words.all_linear.empty() ? "" : path(words.all_linear));
  take_saved(from, path(words.saved));
  if (!words.layers.empty()) {
    std::vector<int64_t> layers;
    for (const std::string& layer : from.list(path(words.layers))) {
      int64_t number = 0;
      const auto [end, error] = std::from_chars(layer.data(), layer.data() + layer.size(), number);
      if (error != std::errc() || end != layer.data() + layer.size()) {
        from.refuse(path(words.layers), layer + " is not the number of a layer");
        continue;
      }
      layers.push_back(number);
    }
    if (!layers.empty()) from.set("adapter.layers", scalar_text(layers));
  }
  if (from.truth(path(words.rslora)).value_or(false)) from.set("adapter.use_rslora", true);
  from.refuse(path(words.dora), "DoRA is not supported");
  if (!words.init.empty()) take_init(from, path(words.init));
  if (!words.folder.empty()) {
    if (const auto folder = from.word(path(words.folder))) from.set("adapter.from", *folder);
  }
  refuse_quantization(from, prefix);
}

const char* const kOtherKeys = "not read; meshtrain recipe --explain WORD names the recipe's key for it";

void need_model(Conversion& from, const std::string& path) {
  const std::optional<std::string> name = from.word(path);
  from.need("model.hf", name ? "the folder of " + *name : "the folder of the base");
  from.need_of_script("");
}

}  // namespace

void convert_peft(Conversion& from) {
  take_lora(from, kPeft, "");
  for (const char* key : {"rank_pattern", "alpha_pattern", "trainable_token_indices", "layer_replication",
                          "target_parameters", "exclude_modules", "lora_bias", "use_qalora", "ensure_weight_tying"}) {
    from.refuse(key, "all adapters must have the same rank, alpha and kind");
  }
  if (from.word("bias").value_or("none") != "none") from.refuse("bias", "biases are not trained with adapters");
  if (from.word("peft_type").value_or("LORA") != "LORA") from.refuse("peft_type", "adapter.kind has only lora");
  need_model(from, "base_model_name_or_path");
  from.ignore_all("auto_mapping revision task_type inference_mode megatron_core qalora_group_size peft_version");
}

void take_axolotl_adapter(Conversion& from) {
  const std::optional<std::string> kind = from.word("adapter");
  if (kind || from.has("lora_r")) take_lora(from, kAxolotl, "");
  if (kind && *kind != "lora") from.refuse("adapter", *kind == "qlora" ? kNoQlora : "adapter.kind has only lora");
  refuse_quantization(from, "");
}

void take_peft_config(Conversion& from) {
  const std::string prefix = "peft_config.";
  if (!from.has("peft_config")) return;
  take_lora(from, kPeft, prefix);
  from.ignore_all("peft_type task_type bias inference_mode", prefix);
}

void convert_trl_adapter(Conversion& from) {
  take_peft_config(from);
  if (!from.has("peft_config")) take_lora(from, kTrl, "");
  from.ignore_all("use_peft lora_task_type");
  refuse_quantization(from, "");
  need_model(from, "model_name_or_path");
  from.refuse_others(kOtherKeys);
}

}  // namespace meshtrain
