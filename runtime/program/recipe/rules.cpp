#include <algorithm>
#include <filesystem>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/program/hf/peft_config.h"
#include "runtime/program/recipe/fields.h"
#include "runtime/program/yaml/reader.h"
#include "runtime/program/yaml/suggest.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/model/rope_scaling.h"
#include "runtime/training/safetensors/folder_kind.h"

namespace meshtrain {
namespace {

void derive_sizes(Reader& reader, ModelShape& shape) {
  if (shape.num_key_value_heads == 0) shape.num_key_value_heads = shape.num_attention_heads;
  if (shape.head_dim == 0) shape.head_dim = family_of(shape).head_dim;
  if (shape.head_dim > 0) return;
  if (shape.hidden_size % shape.num_attention_heads != 0) {
    reader.fail("hidden_size", std::to_string(shape.hidden_size) + " is not a multiple of num_attention_heads " +
                                   std::to_string(shape.num_attention_heads) + ": change one, or give head_dim");
  }
  shape.head_dim = shape.hidden_size / shape.num_attention_heads;
}

void check_experts(const Reader& reader, const ModelShape& shape) {
  const ExpertsShape& experts = shape.experts;
  if (experts.num_experts_per_tok > experts.num_experts) {
    reader.fail("num_experts_per_tok", std::to_string(experts.num_experts_per_tok) + " is more than num_experts " +
                                           std::to_string(experts.num_experts));
  }
  if (const std::string problem = groups_problem(experts); !problem.empty()) reader.fail("n_group", problem);
  const std::vector<int64_t>& dense = experts.mlp_only_layers;
  for (const int64_t layer : dense) {
    if (layer < shape.num_hidden_layers) continue;
    reader.fail("mlp_only_layers", "has " + std::to_string(layer) + ": the model has layers 0 to " +
                                       std::to_string(shape.num_hidden_layers - 1));
  }
  if (experts && static_cast<int64_t>(dense.size()) >= shape.num_hidden_layers) {
    reader.fail("mlp_only_layers", "leaves no layer with experts: use a family without them");
  }
}

void check_shape(const Reader& reader, const ModelShape& shape) {
  if (shape.num_attention_heads % shape.num_key_value_heads != 0) {
    reader.fail("num_key_value_heads", std::to_string(shape.num_key_value_heads) +
                                           " does not divide num_attention_heads " +
                                           std::to_string(shape.num_attention_heads));
  }
  if (shape.head_dim % 2 != 0) {
    reader.fail("head_dim", std::to_string(shape.head_dim) + " is odd: rotary positions rotate pairs of features");
  }
  if (shape.pad_token_id.value_or(0) >= shape.vocab_size) {
    reader.fail("pad_token_id", std::to_string(*shape.pad_token_id) + " is not a token: vocab_size is " +
                                    std::to_string(shape.vocab_size));
  }
  const Family& family = family_of(shape);
  if (shape.rope_scaling && (shape.rope_scaling->type == "longrope") != family.chooses_longrope) {
    reader.fail("rope_scaling",
                "rope_type is " + shape.rope_scaling->type + ", which a " + family.name + " does not have");
  }
  if (const auto mistake = rope_mistake(shape)) reader.fail("rope_scaling", mistake->key + " " + mistake->what);
  if (shape.output_bias && !family.chooses_attention_bias) {
    reader.fail("attention_bias", "true is not supported by family " + shape.family);
  }
  if (shape.mlp_bias && !family.chooses_mlp_bias) {
    reader.fail("mlp_bias", "true is not supported by family " + shape.family);
  }
  const auto check_layers = [&](const char* key, size_t entries) {
    if (entries == 0 || entries == static_cast<size_t>(shape.num_hidden_layers)) return;
    reader.fail(key,
                "has " + counted(entries, "entry", "entries") + " for " + counted(shape.num_hidden_layers, "layer"));
  };
  check_layers("no_rope_layers", shape.no_rope_layers.size());
  check_layers("layer_types", shape.layer_types.size());
  if (shape.sliding_window == 0 && std::ranges::count(shape.layer_types, "sliding_attention") > 0) {
    reader.fail("layer_types", "has sliding_attention, which needs a sliding_window");
  }
  check_experts(reader, shape);
  if (rotary_features(shape) % 2 != 0 || rotary_features(shape) == 0) {
    reader.fail("partial_rotary_factor", "rotates " + counted(rotary_features(shape), "feature") +
                                             " of a head: rotary positions rotate pairs of features");
  }
}

}  // namespace

std::string other_types_key(const std::string& type, const std::vector<std::string>& types_of_key) {
  if (std::find(types_of_key.begin(), types_of_key.end(), type) != types_of_key.end()) return {};
  return "is a key of rope_type " + joined(types_of_key) + ", not of " + type;
}

void begin_shape(Reader& reader, ModelRecipe& model) {
  if (model.hf.empty()) {
    if (!reader.has("hidden_size")) {
      reader.miss("hf", "must be given (a Hugging Face folder), or else the shape: hidden_size, ...");
      reader.require_nothing();
    }
    return;
  }
  if (!reader.opens_files()) return;
  if (const std::string problem = describe_no_model(model.hf); !problem.empty()) reader.fail("hf", problem);
  const std::filesystem::path config = model.hf / "config.json";
  model.shape = read_config_json(config);
  reader.settle(config.string() + "; leave it out, or set model.hf to null");
}

void begin_adapter(Reader& reader, AdapterSection& adapter) {
  AdapterShape& shape = adapter.shape;
  if (shape.from.empty() || !reader.opens_files() || adapter.model->head_dim == 0) return;  // 0: a size is missing
  try {
    AdapterShape found = read_peft_folder(shape.from, *adapter.model);
    found.from = std::move(shape.from);
    shape = std::move(found);
  } catch (const InputError& error) {
    reader.fail("from", error.what());
  }
  reader.settle((shape.from / kPeftConfig).string() + "; leave it out, or set adapter.from to null");
}

void begin_family(const Reader& reader, ModelShape& shape) {
  if (reader.is_settled()) return;
  const Family& family = family_of(shape);
  shape.rms_norm_eps = family.rms_norm_eps;
  shape.rope_theta = family.rope_theta;
  shape.rope_local_base_freq = family.rope_local_base_freq;
  shape.partial_rotary_factor = family.partial_rotary_factor;
  shape.tie_word_embeddings = family.tie_word_embeddings;
  shape.query_pre_attn_scalar = family.query_pre_attn_scalar;
  shape.attn_logit_softcapping = family.attn_logit_softcapping;
  shape.final_logit_softcapping = family.final_logit_softcapping;
  shape.experts.norm_topk_prob = family.experts.normalises;
  shape.qkv_bias = family.attention_bias;
}

void finish_model(Reader& reader, ModelRecipe& model) {
  ModelShape& shape = model.shape;
  derive_sizes(reader, shape);
  if (shape.rope_scaling && shape.rope_scaling->type == "default") shape.rope_scaling.reset();
  std::ranges::sort(shape.experts.mlp_only_layers);
  const auto repeated = std::ranges::unique(shape.experts.mlp_only_layers);
  shape.experts.mlp_only_layers.erase(repeated.begin(), repeated.end());
  check_shape(reader, shape);
  const Family& family = family_of(shape);
  shape.qkv_bias = shape.output_bias || family.qkv_bias;
  shape.output_bias = shape.output_bias && family.biases_output;
  if (model.freeze_padding_row && !shape.pad_token_id) {
    reader.fail("freeze_padding_row", model.hf.empty()
                                          ? "true needs model.pad_token_id, the token whose row it is"
                                          : "true needs a token whose row it is: config.json in " + model.hf.string() +
                                                " has no pad_token_id within the vocabulary");
  }
  if (model.init != "pretrained") return;
  if (model.hf.empty()) reader.fail("init", "pretrained needs model.hf, the folder of the weights");
  if (reader.opens_files() && !has_weights(model.hf)) {
    reader.fail("hf", describe_no_weights(model.hf, "fetch them (python3 tools/fetch_3d_data.py --model " +
                                                        model.hf.filename().string() +
                                                        " for those of recipes/hf_3d), or set model.init to random"));
  }
}

void finish_order(Reader& reader, ParallelRecipe& parallel) try {
  parallel.order = complete_order(parallel.order);
} catch (const InputError& error) {
  reader.fail("order", scalar_text(parallel.order) + " " + error.what());
}

void check_name(Reader& reader, const Recipe& recipe) {
  const std::string& name = recipe.name;
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
    reader.fail("name", scalar_text(name) + " cannot be the name of a folder");
  }
}

void begin_layout(const Reader& reader, SourceOptions& source) {
  if (reader.has("dtype") && source.dtype == "megatron") source.layout = SampleLayout::Stream;
}

void find_tokenizer(std::filesystem::path& tokenizer) {
  std::error_code ignored;
  if (tokenizer.filename() == "bytes" && !std::filesystem::exists(tokenizer, ignored)) tokenizer = "bytes";
}

bool names_mixture(const Reader& reader) {
  if (reader.has("mixture") && !reader.has_items("mixture") && !reader.has("tokens")) {
    reader.fail("mixture", "is an empty list: name its files, or one file alone as data.tokens");
  }
  return reader.has_items("mixture");
}

void begin_balancing(const ModelShape& shape, TrainRecipe& train) {
  const double coefficient = shape.experts.router_aux_loss_coef;
  if (coefficient > 0) train.experts = BalancingOptions{BalanceScope::AllLayers, coefficient};
}

void finish_phases(const Reader& reader, TrainRecipe& train) {
  const std::vector<BatchPhase>& phases = train.phases;
  if (phases.empty()) return;
  const auto refuse = [&](size_t i, const std::string& what) { reader.fail_item("global_batch", i, "until", what); };
  for (size_t i = 0; i + 1 < phases.size(); ++i) {
    if (!phases[i].until) refuse(i, "must be given: the tokens up to which the batch has this size");
    if (i > 0 && *phases[i].until <= *phases[i - 1].until) {
      refuse(i, std::to_string(*phases[i].until) + " is not above the " + std::to_string(*phases[i - 1].until) +
                    " of the entry before it");
    }
  }
  if (phases.back().until)
    refuse(phases.size() - 1, "must be left out in the last entry, whose size is for all further tokens");
  train.global_batch = phases.back().size;
}

void refuse_running_loss(const Reader& reader) {
  if (!reader.is_word("balance", "global_aux_loss")) return;
  reader.fail("balance",
              "global_aux_loss is Megatron's running mean over the micro-batches of a step so far, a number that "
              "depends on the mesh: use sequence or micro_batch");
}

void begin_evaluate(const DataOptions& data, EvaluationOptions& evaluate) {
  static_cast<SourceOptions&>(evaluate) = data;
  evaluate.tokens.clear();  // keys of the training file alone, and its order
  evaluate.source.clear();
  evaluate.loss_mask.clear();
  evaluate.shuffle = false;
}

}  // namespace meshtrain
