#include "runtime/program/hf/config_json.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "mesh/base/error.h"
#include "runtime/program/hf/config_experts.h"
#include "runtime/program/hf/config_layers.h"
#include "runtime/program/hf/config_reader.h"
#include "runtime/program/hf/config_rope.h"
#include "runtime/training/model/families.h"
#include "runtime/training/model/folder_tensors.h"

namespace meshtrain {
namespace {

using nlohmann::json;

// Keys that say nothing about the arithmetic of training.
constexpr std::array<std::string_view, 76> kHarmless = {
    // about the file
    "_name_or_path", "_commit_hash", "architectures", "transformers_version", "torch_dtype", "dtype", "is_llama_config",
    "transformers.js_config", "unsloth_fixed", "unsloth_version", "tokenizer_class", "prefix", "task_specific_params",
    "problem_type", "finetuning_task", "id2label", "label2id", "num_labels",
    "pretraining_tp",                               // pretraining_tp splits products, which changes rounding alone
    "dual_chunk_attention_config",                  // other programs read it; transformers computes plain attention
    "num_nextn_predict_layers", "num_mtp_layers",   // layers behind the model, which transformers does not train
    "experts_per_token", "initial_context_length",  // in folders of gpt-oss, for other programs
    "sliding_window_size",  // in some folders of Gemma 2, beside sliding_window, which alone counts
    // about tokens
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id",
    // about how transformers runs it
    "use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_scores", "return_dict_in_generate",
    "torchscript", "use_bfloat16", "tf_legacy_loss", "chunk_size_feed_forward", "attn_implementation",
    "_attn_implementation", "_attn_implementation_internal", "_attn_implementation_autoset", "experts_implementation",
    "_experts_implementation", "_experts_implementation_internal", "remove_invalid_values", "is_decoder",
    // about generation
    "max_length", "max_sequence_length", "max_new_tokens", "min_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "num_return_sequences", "diversity_penalty", "length_penalty", "repetition_penalty",
    "temperature", "top_k", "top_p", "typical_p", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "cache_implementation", "generation_config"};

struct AllowedValues {
  const char* key;
  std::vector<json> values;  // allowed; so are null and an absent key
  const char* reason;
};

/// Returns the names of the family's activation in transformers, the one to write first.
std::vector<std::string> activation_names(const Family& family) {
  if (family.activation == Activation::GeluTanh) return {"gelu_pytorch_tanh"};
  return {"silu", "swish"};
}

std::string activation_key(const Family& family) {
  return family.activation == Activation::GeluTanh ? "hidden_activation" : "hidden_act";
}

void check_activation(ConfigReader& config, const Family& family) {
  const std::vector<std::string> names = activation_names(family);
  const std::string key = activation_key(family);
  config.ignore("hidden_act");  // Gemma's folders have both keys, of which transformers reads hidden_activation
  config.ignore(key);
  if (!config.has(key)) return;
  const std::string found = config.text(key);
  if (std::ranges::find(names, found) != names.end()) return;
  config.fail(key, "is \"" + found + "\": a " + family.name + " has " + names.front());
}

/// Checks that code in the folder is that of the family: transformers has it as well by now, and reads its own.
void check_auto_map(ConfigReader& config, const Family& family) {
  config.ignore("auto_map");
  if (!config.has("auto_map")) return;
  const json& map = config.value("auto_map");
  const auto model = map.is_object() ? map.find("AutoModelForCausalLM") : map.end();
  const bool is_known = map.is_object() && model != map.end() && model->is_string() &&
                        model->get<std::string>().ends_with("." + family.architecture);
  if (!is_known) config.fail("auto_map", "(" + shown(map) + ") names code in the folder, which is not run");
}

// Refuses the format of gpt-oss's published folders. transformers reads it, and writes the weights in bf16.
void check_quantization(ConfigReader& config) {
  if (!config.has("quantization_config")) return;
  const json& quantization = config.value("quantization_config");
  if (!quantization.is_object() || quantization.value("quant_method", json()) != "mxfp4") return;
  config.fail("quantization_config", "has quant_method mxfp4: " + std::string(kMxfp4Advice));
}

// Checks the keys that leave the numbers unchanged at one value, and change them at others.
void check_fixed_values(ConfigReader& config) {
  static const std::vector<AllowedValues> fixed = {
      {"activation", {"swiglu"}, "which transformers does not read"},
      {"attention_dropout", {0}, "dropout is not available"},
      {"hidden_dropout", {0}, "dropout is not available"},
      {"resid_pdrop", {0}, "dropout is not available"},
      {"embd_pdrop", {0}, "dropout is not available"},
      {"rope_interleaved", {false}, "only rotary halves (false) are available"},
      {"use_bidirectional_attention", {false}, "attention is causal"},
      {"use_mrope", {false}, "multimodal rotary positions are not available"},
      {"quantization_config", {}, "quantised weights are not available"},
      {"full_attn_mod", {1}, "all layers have the same attention"},
      {"interpolate_factor", {1}, "positions are not interpolated"},
      {"lm_head_bias", {false}, "the head has no bias"},
      {"pruned_heads", {json::object()}, "pruned heads are not available"},
      {"is_encoder_decoder", {false}, "only decoders are available"},
      {"add_cross_attention", {false}, "only decoders are available"},
      {"cross_attention_hidden_size", {}, "only decoders are available"},
      {"tie_encoder_decoder", {false}, "only decoders are available"},
  };
  for (const AllowedValues& allowed : fixed) {
    config.ignore(allowed.key);
    if (!config.has(allowed.key)) continue;
    const json& found = config.value(allowed.key);
    if (std::find(allowed.values.begin(), allowed.values.end(), found) == allowed.values.end()) {
      config.fail(allowed.key, "is " + shown(found) + ": " + allowed.reason);
    }
  }
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

// Null is none, and an absent key the family's. A negative id counts from the end, as in torch.nn.Embedding. An id
// beyond the vocabulary cannot occur.
void read_padding(ConfigReader& config, ModelShape& shape) {
  int64_t id = config.mentions("pad_token_id") ? -1 : family_of(shape).pad_token_id;
  if (config.has("pad_token_id")) {
    id = config.integer("pad_token_id", -shape.vocab_size);
    if (id < 0) id += shape.vocab_size;
  }
  if (id >= 0 && id < shape.vocab_size) shape.pad_token_id = id;
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
  const Family& family = family_of(shape);
  shape.rms_norm_eps = config.number_or("rms_norm_eps", family.rms_norm_eps);
  shape.initializer_range = config.number_or("initializer_range", shape.initializer_range);
  shape.tie_word_embeddings = config.boolean_or("tie_word_embeddings", family.tie_word_embeddings);
  read_layers(config, shape);
  read_experts(config, shape);
  read_rope(config, shape);
  read_padding(config, shape);
  check_activation(config, family);
  check_auto_map(config, family);
  check_quantization(config);
  check_fixed_values(config);
  for (const std::string_view key : kHarmless) config.ignore(std::string(key));
  config.refuse_others();
  return shape;
}

std::string write_config_json(const ModelShape& shape, const std::string& dtype, const std::string& others) {
  const Family& family = family_of(shape);
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
  config[activation_key(family)] = activation_names(family).front();
  config["rms_norm_eps"] = shape.rms_norm_eps;
  config["initializer_range"] = shape.initializer_range;
  config["tie_word_embeddings"] = shape.tie_word_embeddings;
  config["attention_dropout"] = 0.0;
  write_layers(config, shape);
  write_experts(config, shape);
  write_rope(config, shape);
  const nlohmann::ordered_json further = nlohmann::ordered_json::parse(others);
  for (const auto& [key, value] : further.items()) {
    if (key != "dtype" && key != "rope_parameters" && !config.contains(key)) config[key] = value;
  }
  if (!config.contains("pad_token_id")) {
    if (shape.pad_token_id) config["pad_token_id"] = *shape.pad_token_id;
    if (!shape.pad_token_id && family.pad_token_id >= 0) config["pad_token_id"] = nullptr;
  }
  return config.dump(2) + "\n";
}

}  // namespace meshtrain
