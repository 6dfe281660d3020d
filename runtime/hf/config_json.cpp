#include "runtime/hf/config_json.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "mesh/error.h"
#include "runtime/hf/config_reader.h"
#include "runtime/model/families.h"
#include "runtime/model/rope_scaling.h"

namespace meshtrain {
namespace {

using nlohmann::json;

// Keys that say nothing about the arithmetic of training.
constexpr std::array<std::string_view, 68> kHarmless = {
    // about the file
    "_name_or_path", "_commit_hash", "architectures", "transformers_version", "torch_dtype", "dtype", "is_llama_config",
    "transformers.js_config", "unsloth_fixed", "unsloth_version", "tokenizer_class", "prefix", "task_specific_params",
    "problem_type", "finetuning_task", "id2label", "label2id", "num_labels",
    // about tokens
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id",
    // about how transformers runs it
    "use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate",
    "torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "attn_implementation",
    "_attn_implementation", "_attn_implementation_internal", "_attn_implementation_autoset", "experts_implementation",
    "_experts_implementation", "_experts_implementation_internal", "remove_invalid_values", "is_decoder",
    // about generation
    "max_length", "max_sequence_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "num_return_sequences", "diversity_penalty", "length_penalty", "repetition_penalty", "temperature", "top_k",
    "top_p", "typical_p", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "cache_implementation", "generation_config"};

struct Only {
  const char* key;
  std::vector<json> values;  // allowed; so are null and an absent key
  const char* reason;
};

// Checks the keys that leave the numbers unchanged at one value, and change them at others.
void check_fixed_values(ConfigReader& config) {
  static const std::vector<Only> fixed = {
      {"hidden_act", {"silu", "swish"}, "only silu is available"},
      {"attention_dropout", {0}, "dropout is not available"},
      {"hidden_dropout", {0}, "dropout is not available"},
      {"resid_pdrop", {0}, "dropout is not available"},
      {"embd_pdrop", {0}, "dropout is not available"},
      {"pretraining_tp", {1}, "only 1 is available, which computes the same up to rounding"},
      {"rope_interleaved", {false}, "only rotary halves (false) are available"},
      {"partial_rotary_factor", {1}, "only whole heads (1) are available"},
      {"use_mrope", {false}, "multimodal rotary positions are not available"},
      {"quantization_config", {}, "quantised weights are not available"},
      {"pruned_heads", {json::object()}, "pruned heads are not available"},
      {"is_encoder_decoder", {false}, "only decoders are available"},
      {"add_cross_attention", {false}, "only decoders are available"},
      {"cross_attention_hidden_size", {}, "only decoders are available"},
      {"tie_encoder_decoder", {false}, "only decoders are available"},
  };
  for (const Only& only : fixed) {
    config.ignore(only.key);
    if (!config.has(only.key)) continue;
    const json& found = config.value(only.key);
    if (std::find(only.values.begin(), only.values.end(), found) == only.values.end()) {
      config.fail(only.key, "is " + shown(found) + ": " + only.reason);
    }
  }
}

// Checks that every layer attends to all earlier positions: a sliding window must not be shorter than the positions.
void check_window(ConfigReader& config, const ModelShape& shape) {
  config.ignore("layer_types");
  if (config.has("layer_types")) {
    const json& types = config.value("layer_types");
    if (!types.is_array()) config.fail("layer_types", "is " + shown(types) + ", not a list");
    for (const json& type : types) {
      if (type != "full_attention") {
        config.fail("layer_types", "has " + shown(type) + ": only full_attention is available");
      }
    }
  }
  const Family& family = family_of(shape);
  if (family.switches_window) {
    config.ignore("sliding_window");
    config.ignore("max_window_layers");
    if (config.boolean_or("use_sliding_window", false)) {
      config.fail("use_sliding_window", "is true: sliding windows are not available");
    }
    return;
  }
  const bool silent = !config.mentions("sliding_window");
  config.ignore("sliding_window");
  if (!config.has("sliding_window") && !(silent && family.sliding_window > 0)) return;
  const int64_t window = silent ? family.sliding_window : config.integer("sliding_window");
  if (shape.max_position_embeddings > 0 && window >= shape.max_position_embeddings) return;
  config.fail("sliding_window", (silent ? "is absent, which means " : "is ") + std::to_string(window) +
                                    ", below max_position_embeddings (" +
                                    std::to_string(shape.max_position_embeddings) +
                                    "): sliding windows are not available; null stands for none");
}

// Reads the keys that transformers reads of each type; it ignores those of other types.
RopeScaling read_scaling(ConfigReader& rope, const std::string& type) {
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings",
                          "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}) {
    rope.ignore(key);
  }
  RopeScaling scaling;
  scaling.type = type;
  if (type == "default") return scaling;
  scaling.factor = rope.number("factor");
  if (type == "llama3") {
    scaling.low_freq_factor = rope.number("low_freq_factor");
    scaling.high_freq_factor = rope.number("high_freq_factor");
    scaling.original_max_position_embeddings = rope.integer("original_max_position_embeddings");
  } else if (type == "yarn") {
    scaling.original_max_position_embeddings = rope.integer_or("original_max_position_embeddings", 0);
    scaling.beta_fast = rope.number_or("beta_fast", scaling.beta_fast);
    scaling.beta_slow = rope.number_or("beta_slow", scaling.beta_slow);
    if (rope.has("attention_factor")) {
      scaling.attention_factor = rope.number("attention_factor");
    } else if (rope.has("mscale") && rope.has("mscale_all_dim")) {  // one alone has no effect
      scaling.mscale = rope.number("mscale");
      scaling.mscale_all_dim = rope.number("mscale_all_dim");
    }
    scaling.truncate = rope.boolean_or("truncate", !rope.mentions("truncate"));  // null is false to transformers
  }
  return scaling;
}

void read_rope(ConfigReader& config, ModelShape& shape) {
  shape.rope_theta = config.number_or("rope_theta", ModelShape{}.rope_theta);
  config.ignore("rope_parameters");
  config.ignore("rope_scaling");
  const bool version5 = config.has("rope_parameters");
  if (!version5 && !config.has("rope_scaling")) return;
  if (version5 && config.has("rope_scaling") && config.value("rope_parameters") != config.value("rope_scaling")) {
    config.fail("rope_scaling", "and rope_parameters are both given and differ");
  }
  const std::string name = version5 ? "rope_parameters" : "rope_scaling";
  ConfigReader rope = config.object(name);
  rope.ignore("rope_type");
  rope.ignore("type");
  std::string type = rope.has("type") ? rope.text("type") : "default";
  if (rope.has("rope_type")) {
    if (rope.has("type") && rope.text("rope_type") != type) rope.fail("type", "and rope_type differ");
    type = rope.text("rope_type");
  }
  const double theta = rope.number_or("rope_theta", shape.rope_theta);
  if (config.has("rope_theta") && theta != shape.rope_theta) rope.fail("rope_theta", "differs from the one outside");
  shape.rope_theta = theta;
  rope.ignore("partial_rotary_factor");
  if (rope.has("partial_rotary_factor") && rope.number("partial_rotary_factor") != 1) {
    rope.fail("partial_rotary_factor", "is not 1: only whole heads are available");
  }
  if (type != "default" && type != "linear" && type != "llama3" && type != "yarn") {
    rope.fail("rope_type", "is \"" + type + "\", which is not available yet (default, linear, llama3 and yarn are)");
  }
  const RopeScaling scaling = read_scaling(rope, type);
  if (type != "default") shape.rope_scaling = scaling;
  if (const auto mistake = rope_mistake(shape)) rope.fail(mistake->key, mistake->what);
  rope.refuse_others();
}

void read_sizes(ConfigReader& config, ModelShape& shape) {
  shape.hidden_size = config.integer("hidden_size");
  shape.intermediate_size = config.integer("intermediate_size");
  shape.num_hidden_layers = config.integer("num_hidden_layers");
  shape.num_attention_heads = config.integer("num_attention_heads");
  shape.vocab_size = config.integer("vocab_size");
  shape.max_position_embeddings = config.integer_or("max_position_embeddings", 0);
  const Family& family = family_of(shape);
  // When the key is absent from other families' files, transformers takes the number of one published model.
  shape.num_key_value_heads = family.derives_kv_heads
                                  ? config.integer_or("num_key_value_heads", shape.num_attention_heads)
                                  : config.integer("num_key_value_heads");
  if (shape.num_attention_heads % shape.num_key_value_heads != 0) {
    config.fail("num_key_value_heads", "is " + std::to_string(shape.num_key_value_heads) +
                                           ", which does not divide num_attention_heads " +
                                           std::to_string(shape.num_attention_heads));
  }
  const int64_t absent_head_dim = family.head_dim > 0 ? family.head_dim : shape.hidden_size / shape.num_attention_heads;
  if (!config.has("head_dim") && family.head_dim == 0 && shape.hidden_size % shape.num_attention_heads != 0) {
    config.fail("hidden_size", "is " + std::to_string(shape.hidden_size) + ", which num_attention_heads " +
                                   std::to_string(shape.num_attention_heads) +
                                   " does not divide, and there is no head_dim");
  }
  shape.head_dim = config.integer_or("head_dim", absent_head_dim);
  if (shape.head_dim % 2 != 0) {
    config.fail("head_dim", "is " + std::to_string(shape.head_dim) + ", rotary positions need an even one");
  }
}

void read_biases(ConfigReader& config, ModelShape& shape) {
  const Family& family = family_of(shape);
  shape.qk_norm = family.qk_norm;
  if (family.chooses_attention_bias) {
    shape.qkv_bias = shape.output_bias = config.boolean_or("attention_bias", false);
  } else if (config.boolean_or("attention_bias", false)) {
    config.fail("attention_bias", "is true, which a " + shape.family + " does not have");
  }
  if (family.qkv_bias) shape.qkv_bias = true;
  shape.mlp_bias = config.boolean_or("mlp_bias", false);
  if (shape.mlp_bias && !family.chooses_mlp_bias) {
    config.fail("mlp_bias", "is true, which a " + shape.family + " does not have");
  }
}

// A negative id counts from the end, as in torch.nn.Embedding. An id beyond the vocabulary cannot occur.
void read_padding(ConfigReader& config, ModelShape& shape) {
  if (!config.has("pad_token_id")) return;
  const int64_t id = config.integer("pad_token_id", -shape.vocab_size);
  if (id < shape.vocab_size) shape.pad_token_id = id < 0 ? id + shape.vocab_size : id;
}

// Returns the keys of the scaling's type. Yarn's keys with transformers' defaults are left out, as some of its versions
// do not know them.
nlohmann::ordered_json scaling_keys(const RopeScaling& scaling) {
  nlohmann::ordered_json keys = {{"rope_type", scaling.type}, {"factor", scaling.factor}};
  if (scaling.type == "llama3") {
    keys["low_freq_factor"] = scaling.low_freq_factor;
    keys["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (scaling.original_max_position_embeddings > 0) {
    keys["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  }
  if (scaling.type == "yarn") {
    keys["beta_fast"] = scaling.beta_fast;
    keys["beta_slow"] = scaling.beta_slow;
    if (scaling.attention_factor) keys["attention_factor"] = *scaling.attention_factor;
    if (scaling.mscale) keys["mscale"] = *scaling.mscale;
    if (scaling.mscale_all_dim) keys["mscale_all_dim"] = *scaling.mscale_all_dim;
    if (!scaling.truncate) keys["truncate"] = false;
  }
  return keys;
}

}  // namespace

ModelShape read_config_json(const std::filesystem::path& file) {
  ConfigReader config(file);
  ModelShape shape;
  shape.family = config.text("model_type");
  if (find_family(shape.family) == nullptr) {
    std::string known;
    for (const Family& family : families()) known += (known.empty() ? "" : ", ") + family.name;
    config.fail("model_type", "is \"" + shape.family + "\", not one of " + known);
  }
  read_sizes(config, shape);
  shape.rms_norm_eps = config.number_or("rms_norm_eps", shape.rms_norm_eps);
  shape.initializer_range = config.number_or("initializer_range", shape.initializer_range);
  shape.tie_word_embeddings = config.boolean_or("tie_word_embeddings", false);
  read_biases(config, shape);
  read_rope(config, shape);
  read_padding(config, shape);
  check_window(config, shape);
  check_fixed_values(config);
  for (const std::string_view key : kHarmless) config.ignore(std::string(key));
  config.refuse_others();
  return shape;
}

std::string write_config_json(const ModelShape& shape, const std::string& dtype, const std::string& others) {
  const Family& family = family_of(shape);
  const bool has_biases = family.chooses_attention_bias ? shape.qkv_bias == shape.output_bias
                                                        : !shape.output_bias && shape.qkv_bias == family.qkv_bias;
  if (!has_biases || (shape.mlp_bias && !family.chooses_mlp_bias) || shape.qk_norm != family.qk_norm) {
    throw InputError("a " + shape.family + " with these biases and norms cannot be written as a config.json");
  }
  nlohmann::ordered_json config;
  config["architectures"] = {family.architecture};
  config["model_type"] = shape.family;
  config["torch_dtype"] = dtype;
  config["hidden_size"] = shape.hidden_size;
  config["intermediate_size"] = shape.intermediate_size;
  config["num_hidden_layers"] = shape.num_hidden_layers;
  config["num_attention_heads"] = shape.num_attention_heads;
  config["num_key_value_heads"] = shape.num_key_value_heads;
  config["head_dim"] = shape.head_dim;
  config["vocab_size"] = shape.vocab_size;
  if (shape.max_position_embeddings > 0) config["max_position_embeddings"] = shape.max_position_embeddings;
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = shape.rms_norm_eps;
  config["initializer_range"] = shape.initializer_range;
  config["tie_word_embeddings"] = shape.tie_word_embeddings;
  config["attention_dropout"] = 0.0;
  if (family.chooses_attention_bias) config["attention_bias"] = shape.qkv_bias;
  if (family.chooses_mlp_bias) config["mlp_bias"] = shape.mlp_bias;
  if (family.sliding_window > 0) config["sliding_window"] = nullptr;
  if (family.switches_window) config["use_sliding_window"] = false;
  config["rope_theta"] = shape.rope_theta;
  config["rope_scaling"] = nullptr;
  if (shape.rope_scaling) config["rope_scaling"] = scaling_keys(*shape.rope_scaling);
  const nlohmann::ordered_json further = nlohmann::ordered_json::parse(others);
  for (const auto& [key, value] : further.items()) {
    if (key != "dtype" && key != "rope_parameters" && !config.contains(key)) config[key] = value;
  }
  if (shape.pad_token_id && !config.contains("pad_token_id")) config["pad_token_id"] = *shape.pad_token_id;
  return config.dump(2) + "\n";
}

}  // namespace meshtrain
