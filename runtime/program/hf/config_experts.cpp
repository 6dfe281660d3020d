#include "runtime/program/hf/config_experts.h"

#include <algorithm>
#include <string>

#include "mesh/base/error.h"
#include "runtime/training/model/families.h"

namespace meshtrain {
namespace {

using nlohmann::json;

int64_t read_number(ConfigReader& config, const FamilyExperts& family) {
  const std::string &key = family.number_key, &other = family.other_number_key;
  if (other.empty() || !config.has(other)) return config.integer(key);
  const int64_t number = config.integer(other);
  if (config.integer_or(key, number) != number) config.fail(other, "and " + key + " differ");
  return number;
}

/// Returns the layers without experts, in their order.
std::vector<int64_t> read_dense_layers(ConfigReader& config, int64_t num_layers) {
  const int64_t step = config.integer_or("decoder_sparse_step", 1);
  const json named = config.has("mlp_only_layers") ? config.value("mlp_only_layers") : json::array();
  config.ignore("mlp_only_layers");
  if (!named.is_array()) config.fail("mlp_only_layers", "is " + shown(named) + ", not a list");
  std::vector<int64_t> dense;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const bool is_named = std::ranges::find(named, json(layer)) != named.end();
    if (is_named || (layer + 1) % step != 0) dense.push_back(layer);
  }
  return dense;
}

void read_groups(ConfigReader& config, ExpertsShape& experts) {
  experts.n_group = config.integer_or("n_group", 1);
  experts.topk_group = config.integer_or("topk_group", 1);
  experts.routed_scaling_factor = config.number_or("routed_scaling_factor", 1);
  if (const std::string problem = groups_problem(experts); !problem.empty()) config.fail("n_group", ": " + problem);
}

/// Checks the keys that leave the numbers unchanged at one value.
void check_fixed_values(ConfigReader& config, const std::string& family) {
  for (const char* key : {"router_jitter_noise", "clip_qkv"}) {
    config.ignore(key);
    if (!config.has(key) || config.value(key) == 0) continue;
    config.fail(key, "is " + shown(config.value(key)) + ": only a " + family + " without it is supported");
  }
  for (const auto& [key, value] : {std::pair("scoring_func", "sigmoid"), std::pair("topk_method", "noaux_tc")}) {
    config.ignore(key);  // which transformers does not read
    if (!config.has(key) || config.value(key) == value || config.value(key) == "noaux_tc") continue;
    config.fail(key, "is " + shown(config.value(key)) + ": a " + family + " has " + value);
  }
  if (config.integer_or("moe_layer_freq", 1) != 1) config.fail("moe_layer_freq", "is not 1");
  if (!config.boolean_or("qkv_bias", true)) {
    config.fail("qkv_bias", "is false: a " + family + " has biases of q, k and v");
  }
}

}  // namespace

void read_experts(ConfigReader& config, ModelShape& shape) {
  const FamilyExperts& family = family_of(shape).experts;
  if (!family) return;
  ExpertsShape& experts = shape.experts;
  experts.num_experts = read_number(config, family);
  experts.num_experts_per_tok = config.integer("num_experts_per_tok");
  if (experts.num_experts_per_tok > experts.num_experts) {
    config.fail("num_experts_per_tok", "is " + std::to_string(experts.num_experts_per_tok) + ", more than the " +
                                           std::to_string(experts.num_experts) + " experts of " + family.number_key);
  }
  if (family.chooses_size) experts.moe_intermediate_size = config.integer("moe_intermediate_size");
  if (const std::string& key = family.shared_key; !key.empty()) {
    const int64_t size = family.needs_shared ? config.integer(key) : config.integer_or(key, 0, 0);
    experts.shared_expert_intermediate_size = size * (family.counts_shared ? experts.moe_intermediate_size : 1);
  }
  experts.norm_topk_prob =
      family.chooses_normalisation ? config.boolean_or("norm_topk_prob", family.normalises) : family.normalises;
  if (family.chooses_dense_layers) experts.mlp_only_layers = read_dense_layers(config, shape.num_hidden_layers);
  if (family.chooses_first_dense) {
    const int64_t count = config.integer_or("first_k_dense_replace", family.first_k_dense_replace, 0);
    for (int64_t layer = 0; layer < std::min(count, shape.num_hidden_layers); ++layer) {
      experts.mlp_only_layers.push_back(layer);
    }
  }
  if (family.chooses_groups) read_groups(config, experts);
  if (family.clamps) {
    experts.swiglu_alpha = config.number_or("swiglu_alpha", experts.swiglu_alpha);
    experts.swiglu_limit = config.number_or("swiglu_limit", experts.swiglu_limit);
  }
  if (static_cast<int64_t>(experts.mlp_only_layers.size()) == shape.num_hidden_layers) {
    config.fail(family.chooses_first_dense ? "first_k_dense_replace" : "mlp_only_layers",
                family.chooses_first_dense ? "leaves no layer with experts"
                                           : "and decoder_sparse_step leave no layer with experts");
  }
  config.ignore("router_aux_loss_coef");  // which counts only with output_router_logits
  const bool balances = config.boolean_or("output_router_logits", false) && family.router_aux_loss_coef > 0;
  if (balances && !(config.has("router_aux_loss_coef") && config.value("router_aux_loss_coef") == 0)) {
    experts.router_aux_loss_coef = config.number_or("router_aux_loss_coef", family.router_aux_loss_coef);
  }
  check_fixed_values(config, shape.family);
}

namespace {

/// Throws InputError for numbers that the family's keys cannot express.
void check_expressible(const ModelShape& shape) {
  const FamilyExperts& family = family_of(shape).experts;
  const ExpertsShape& experts = shape.experts;
  const std::string problem = "a " + shape.family + " cannot be written as a config.json: ";
  if (family.counts_shared && experts.shared_expert_intermediate_size % experts.moe_intermediate_size != 0) {
    throw InputError(problem + "its shared_expert_intermediate_size is not a multiple of moe_intermediate_size");
  }
  const std::vector<int64_t>& dense = experts.mlp_only_layers;
  if (family.chooses_first_dense && !dense.empty() && dense.back() + 1 != static_cast<int64_t>(dense.size())) {
    throw InputError(problem + "its mlp_only_layers are not its first layers");
  }
}

}  // namespace

void write_experts(nlohmann::ordered_json& config, const ModelShape& shape) {
  const FamilyExperts& family = family_of(shape).experts;
  const ExpertsShape& experts = shape.experts;
  if (static_cast<bool>(experts) != static_cast<bool>(family)) {
    throw InputError("a " + shape.family + (experts ? " with" : " without") +
                     " experts cannot be written as a config.json");
  }
  if (!family) return;
  check_expressible(shape);
  config[family.number_key] = experts.num_experts;
  config["num_experts_per_tok"] = experts.num_experts_per_tok;
  if (family.chooses_size) config["moe_intermediate_size"] = experts.moe_intermediate_size;
  if (experts.router_aux_loss_coef > 0) {
    config["output_router_logits"] = true;
    config["router_aux_loss_coef"] = experts.router_aux_loss_coef;
  }
  if (!family.shared_key.empty()) {
    config[family.shared_key] =
        experts.shared_expert_intermediate_size / (family.counts_shared ? experts.moe_intermediate_size : 1);
  }
  if (family.chooses_normalisation) config["norm_topk_prob"] = experts.norm_topk_prob;
  if (family.chooses_groups) {
    config["n_group"] = experts.n_group;
    config["topk_group"] = experts.topk_group;
    config["routed_scaling_factor"] = experts.routed_scaling_factor;
  }
  if (family.clamps) {
    config["swiglu_alpha"] = experts.swiglu_alpha;
    config["swiglu_limit"] = experts.swiglu_limit;
  }
  if (family.chooses_first_dense) config["first_k_dense_replace"] = experts.mlp_only_layers.size();
  if (!family.chooses_dense_layers) return;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = experts.mlp_only_layers;
}

}  // namespace meshtrain
