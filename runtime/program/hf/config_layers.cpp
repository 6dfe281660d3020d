#include "runtime/program/hf/config_layers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "runtime/training/model/families.h"

namespace meshtrain {
namespace {

using nlohmann::json;

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

void read_biases(ConfigReader& config, ModelShape& shape) {
  const Family& family = family_of(shape);
  if (family.chooses_attention_bias) {
    shape.qkv_bias = config.boolean_or("attention_bias", family.attention_bias);
    shape.output_bias = shape.qkv_bias && family.biases_output;
  } else if (config.boolean_or("attention_bias", false)) {
    config.fail("attention_bias", "is true, which a " + shape.family + " does not have");
  }
  if (family.qkv_bias) shape.qkv_bias = true;
  shape.mlp_bias = config.boolean_or("mlp_bias", false);
  if (shape.mlp_bias && !family.chooses_mlp_bias) {
    config.fail("mlp_bias", "is true, which a " + shape.family + " does not have");
  }
}

/// Reads a list with one entry for each layer.
const json& list_of_layers(ConfigReader& config, const std::string& key, const ModelShape& shape) {
  const json& list = config.value(key);
  if (!list.is_array()) config.fail(key, "is " + shown(list) + ", not a list");
  if (list.size() != static_cast<size_t>(shape.num_hidden_layers)) {
    config.fail(
        key, "has " + counted(list.size(), "entry", "entries") + " for " + counted(shape.num_hidden_layers, "layer"));
  }
  return list;
}

void read_rotary_layers(ConfigReader& config, ModelShape& shape) {
  if (!family_of(shape).chooses_rotary_layers) return;
  const int64_t interval = config.integer_or("no_rope_layer_interval", 4);
  config.ignore("no_rope_layers");
  if (config.has("no_rope_layers")) {
    for (const json& layer : list_of_layers(config, "no_rope_layers", shape)) {
      if (layer != 0 && layer != 1) config.fail("no_rope_layers", "has " + shown(layer) + ", not 0 or 1");
      shape.no_rope_layers.push_back(layer.get<int64_t>());
    }
  } else {
    for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
      shape.no_rope_layers.push_back((layer + 1) % interval != 0 ? 1 : 0);
    }
  }
}

/// Returns the window of the layers that slide; 0: none slides.
int64_t read_window(ConfigReader& config, const Family& family) {
  config.ignore("sliding_window");
  if (family.switches_window && !config.boolean_or("use_sliding_window", false)) return 0;
  if (!config.mentions("sliding_window")) return family.sliding_window;
  return config.has("sliding_window") ? config.integer("sliding_window") : 0;
}

/// Reads the distance of full layers where layer_types is absent. transformers ignores the key in Gemma 2.
int64_t read_pattern(ConfigReader& config, const Family& family) {
  config.ignore("_sliding_window_pattern");  // transformers 5 writes it beside layer_types
  if (family.sliding_pattern == 0) return 0;
  const int64_t pattern = config.integer_or("sliding_window_pattern", family.sliding_pattern);
  return family.chooses_window_pattern ? pattern : family.sliding_pattern;
}

/// Returns true when `layer` slides where layer_types is absent.
bool slides_by_default(const Family& family, int64_t layer, int64_t pattern, int64_t first, const ModelShape& shape) {
  if (family.chooses_rotary_layers) return !is_rotary(shape, layer);
  if (family.max_window_layers > 0 && pattern > 0) return (layer + 1) % pattern != 0 && layer < first;
  if (family.max_window_layers > 0) return layer >= first;
  return pattern == 0 || (layer + 1) % pattern != 0;
}

void read_windows(ConfigReader& config, ModelShape& shape) {
  const Family& family = family_of(shape);
  config.ignore("layer_types");
  std::vector<std::string> types;
  if (config.has("layer_types")) {
    for (const json& type : list_of_layers(config, "layer_types", shape)) {
      if (type != kFull && type != kSliding) {
        config.fail("layer_types", "has " + shown(type) + ": " + kFull + " and " + kSliding + " are available");
      }
      types.push_back(type.get<std::string>());
    }
  }
  const auto slide = [&] { return std::ranges::count(types, kSliding); };
  if (!family.chooses_window) {
    if (slide() > 0)
      config.fail("layer_types", "has " + std::string(kSliding) + ", which a " + family.name + " does not have");
    return;
  }
  const int64_t window = read_window(config, family);
  const int64_t pattern = read_pattern(config, family);
  const int64_t last = family.max_window_layers, first = last > 0 ? config.integer_or("max_window_layers", last, 0) : 0;
  if (family.chooses_layer_types && types.empty() && window > 0) {
    for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
      types.emplace_back(slides_by_default(family, layer, pattern, first, shape) ? kSliding : kFull);
    }
  }
  if (!types.empty() && slide() > 0 && window == 0) {
    config.fail("layer_types", "has " + std::string(kSliding) + ", but there is no sliding_window" +
                                   (family.switches_window ? " (use_sliding_window is false)" : ""));
  }
  if (!types.empty() && !family.chooses_layer_types && window > 0 && slide() != shape.num_hidden_layers) {
    config.fail("layer_types",
                "has " + std::string(kFull) + ": in a " + family.name + " with a sliding_window all layers slide");
  }
  if (window == 0 || (!types.empty() && slide() == 0)) return;
  shape.sliding_window = window;
  if (slide() < shape.num_hidden_layers) shape.layer_types = types;
}

void read_multipliers(ConfigReader& config, ModelShape& shape) {
  const Family& family = family_of(shape);
  if (family.chooses_multipliers) {
    shape.embedding_multiplier = config.number_or("embedding_multiplier", 1);
    shape.attention_multiplier = config.number_or("attention_multiplier", 1);
    shape.residual_multiplier = config.number_or("residual_multiplier", 1);
    shape.logits_scaling = config.number_or("logits_scaling", 1);
  }
  if (family.chooses_qk_norm) shape.use_qk_norm = config.boolean_or("use_qk_norm", false);
  if (family.chooses_query_scalar) {
    shape.query_pre_attn_scalar = config.integer_or("query_pre_attn_scalar", family.query_pre_attn_scalar);
  }
  if (family.chooses_softcaps) {
    const auto cap = [&](const char* key, double absent) {
      return config.number_or(key, config.mentions(key) ? 0 : absent);  // null: none
    };
    shape.attn_logit_softcapping = cap("attn_logit_softcapping", family.attn_logit_softcapping);
    shape.final_logit_softcapping = cap("final_logit_softcapping", family.final_logit_softcapping);
  }
}

nlohmann::ordered_json or_null(double value) {
  return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

/// Returns the key of a refusal when `shape` has something that its family does not choose; empty when all is well.
std::string not_chosen(const ModelShape& shape) {
  const Family& family = family_of(shape);
  const bool has_biases = family.chooses_attention_bias ? shape.output_bias == (shape.qkv_bias && family.biases_output)
                                                        : !shape.output_bias && shape.qkv_bias == family.qkv_bias;
  if (!has_biases) return "attention_bias";
  if (shape.mlp_bias && !family.chooses_mlp_bias) return "mlp_bias";
  if (shape.sliding_window > 0 && !family.chooses_window) return "sliding_window";
  if (!shape.layer_types.empty() && !family.chooses_layer_types) return "layer_types";
  if (!shape.no_rope_layers.empty() && !family.chooses_rotary_layers) return "no_rope_layers";
  return "";
}

}  // namespace

void read_layers(ConfigReader& config, ModelShape& shape) {
  read_biases(config, shape);
  read_rotary_layers(config, shape);
  read_windows(config, shape);
  read_multipliers(config, shape);
}

void write_layers(nlohmann::ordered_json& config, const ModelShape& shape) {
  const Family& family = family_of(shape);
  if (const std::string key = not_chosen(shape); !key.empty()) {
    throw InputError("a " + shape.family + " with this " + key + " cannot be written as a config.json");
  }
  if (family.chooses_attention_bias) config["attention_bias"] = shape.qkv_bias;
  if (family.chooses_mlp_bias) config["mlp_bias"] = shape.mlp_bias;
  if (family.chooses_qk_norm) config["use_qk_norm"] = shape.use_qk_norm;
  if (family.chooses_rotary_layers) {
    for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
      config["no_rope_layers"].push_back(is_rotary(shape, layer) ? 1 : 0);
    }
  }
  if (family.chooses_multipliers) {
    config["embedding_multiplier"] = shape.embedding_multiplier;
    config["attention_multiplier"] = attention_scale(shape);
    config["residual_multiplier"] = shape.residual_multiplier;
    config["logits_scaling"] = shape.logits_scaling;
  }
  if (family.chooses_query_scalar) {
    config["query_pre_attn_scalar"] = shape.query_pre_attn_scalar > 0 ? shape.query_pre_attn_scalar : shape.head_dim;
  }
  if (family.chooses_softcaps) {
    config["attn_logit_softcapping"] = or_null(shape.attn_logit_softcapping);
    config["final_logit_softcapping"] = or_null(shape.final_logit_softcapping);
  }
  if (!family.chooses_window) return;
  const bool slides = shape.sliding_window > 0;
  if (family.switches_window) {
    config["use_sliding_window"] = slides;
    if (!slides) return;
  }
  config["sliding_window"] = slides ? nlohmann::ordered_json(shape.sliding_window) : nlohmann::ordered_json(nullptr);
  if (!family.chooses_layer_types) return;
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    config["layer_types"].push_back(window_of(shape, layer) > 0 ? kSliding : kFull);
  }
}

}  // namespace meshtrain
