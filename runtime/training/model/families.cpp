#include "runtime/training/model/families.h"

#include <algorithm>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

/// Experts as in DeepSeek-V3.
FamilyExperts sigmoid_experts() {
  return {.number_key = "n_routed_experts",
          .score = RouterScore::Sigmoid,
          .wide_weights = true,
          .wide_logits = true,
          .has_selection_bias = true,
          .shared_key = "n_shared_experts",
          .shared_name = "shared_experts",
          .counts_shared = true,
          .needs_shared = true,
          .chooses_size = true,
          .chooses_normalisation = true,
          .chooses_first_dense = true,
          .chooses_groups = true,
          .router_aux_loss_coef = 0};
}

FamilyExperts glm_experts() {
  FamilyExperts experts = sigmoid_experts();
  experts.normalises = true;
  experts.first_k_dense_replace = 1;
  return experts;
}

RopeScaling gpt_oss_scaling() {
  RopeScaling scaling;
  scaling.type = "yarn";
  scaling.factor = 32;
  scaling.original_max_position_embeddings = 4096;
  scaling.truncate = false;
  return scaling;
}

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {.name = "llama",
       .architecture = "LlamaForCausalLM",
       .chooses_attention_bias = true,
       .chooses_mlp_bias = true,
       .derives_kv_heads = true},
      {.name = "mistral", .architecture = "MistralForCausalLM", .chooses_window = true, .sliding_window = 4096},
      {.name = "qwen2",
       .architecture = "Qwen2ForCausalLM",
       .qkv_bias = true,
       .chooses_window = true,
       .chooses_layer_types = true,
       .switches_window = true,
       .sliding_window = 4096,
       .max_window_layers = 28},
      {.name = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .qk_norm = QueryKeyNorm::EachHead,
       .chooses_attention_bias = true,
       .chooses_window = true,
       .chooses_layer_types = true,
       .switches_window = true,
       .head_dim = 128,
       .sliding_window = 4096,
       .max_window_layers = 28},
      {.name = "smollm3",
       .architecture = "SmolLM3ForCausalLM",
       .chooses_attention_bias = true,
       .chooses_mlp_bias = true,
       .chooses_rotary_layers = true,
       .chooses_window = true,
       .chooses_layer_types = true,
       .switches_window = true,
       .derives_kv_heads = true,
       .rope_theta = 2e6,
       .tie_word_embeddings = true,
       .pad_token_id = 128004},
      {.name = "granite",
       .architecture = "GraniteForCausalLM",
       .chooses_attention_bias = true,
       .chooses_mlp_bias = true,
       .chooses_multipliers = true,
       .derives_kv_heads = true},
      {.name = "phi3",
       .architecture = "Phi3ForCausalLM",
       .fused_projections = true,
       .chooses_rotary_part = true,
       .chooses_longrope = true,
       .chooses_window = true,
       .derives_kv_heads = true,
       .rms_norm_eps = 1e-5,
       .pad_token_id = 32000},
      {.name = "olmo2",
       .architecture = "Olmo2ForCausalLM",
       .norm_weight = NormWeight::Wide,
       .norm_placement = NormPlacement::After,
       .qk_norm = QueryKeyNorm::AllHeads,
       .chooses_attention_bias = true,
       .derives_kv_heads = true,
       .rms_norm_eps = 1e-5,
       .pad_token_id = 1},
      {.name = "gemma2",
       .architecture = "Gemma2ForCausalLM",
       .norm_weight = NormWeight::PlusOne,
       .norm_placement = NormPlacement::Both,
       .activation = Activation::GeluTanh,
       .scales_embedding = true,
       .chooses_attention_bias = true,
       .chooses_query_scalar = true,
       .chooses_softcaps = true,
       .chooses_window = true,
       .chooses_layer_types = true,
       .head_dim = 256,
       .query_pre_attn_scalar = 256,
       .attn_logit_softcapping = 50,
       .final_logit_softcapping = 30,
       .sliding_window = 4096,
       .sliding_pattern = 2,
       .tie_word_embeddings = true,
       .pad_token_id = 0},
      {.name = "gemma3_text",
       .architecture = "Gemma3ForCausalLM",
       .norm_weight = NormWeight::PlusOne,
       .norm_placement = NormPlacement::Both,
       .qk_norm = QueryKeyNorm::EachHead,
       .activation = Activation::GeluTanh,
       .scales_embedding = true,
       .chooses_attention_bias = true,
       .chooses_query_scalar = true,
       .chooses_softcaps = true,
       .chooses_local_theta = true,
       .chooses_window = true,
       .chooses_window_pattern = true,
       .chooses_layer_types = true,
       .head_dim = 256,
       .query_pre_attn_scalar = 256,
       .rope_theta = 1e6,
       .rope_local_base_freq = 10000,
       .sliding_window = 4096,
       .sliding_pattern = 6,
       .tie_word_embeddings = true,
       .pad_token_id = 0},
      {.name = "mixtral",
       .architecture = "MixtralForCausalLM",
       .experts = {.number_key = "num_local_experts",
                   .tensors = {.router = ".block_sparse_moe.gate",
                               .gate = ".block_sparse_moe.experts.%.w1.weight",
                               .up = ".block_sparse_moe.experts.%.w3.weight",
                               .down = ".block_sparse_moe.experts.%.w2.weight"},
                   .normalises = true,
                   .wide_weights = true},
       .chooses_window = true,
       .rms_norm_eps = 1e-5,
       .rope_theta = 1e6},
      {.name = "qwen2_moe",
       .architecture = "Qwen2MoeForCausalLM",
       .qkv_bias = true,
       .experts = {.number_key = "num_experts",
                   .shared_key = "shared_expert_intermediate_size",
                   .needs_shared = true,
                   .gates_shared = true,
                   .chooses_size = true,
                   .chooses_normalisation = true,
                   .chooses_dense_layers = true},
       .chooses_window = true,
       .chooses_layer_types = true,
       .switches_window = true,
       .sliding_window = 4096,
       .max_window_layers = 28,
       .sliding_pattern = 2},
      {.name = "qwen3_moe",
       .architecture = "Qwen3MoeForCausalLM",
       .qk_norm = QueryKeyNorm::EachHead,
       .experts = {.number_key = "num_experts",
                   .other_number_key = "num_local_experts",
                   .chooses_size = true,
                   .chooses_normalisation = true,
                   .chooses_dense_layers = true},
       .chooses_attention_bias = true,
       .chooses_window = true,
       .switches_window = true,
       .sliding_window = 4096,
       .max_window_layers = 28},
      {.name = "olmoe",
       .architecture = "OlmoeForCausalLM",
       .qk_norm = QueryKeyNorm::AllHeads,
       .experts = {.number_key = "num_experts",
                   .other_number_key = "num_local_experts",
                   .chooses_normalisation = true,
                   .router_aux_loss_coef = 0.01},
       .chooses_attention_bias = true,
       .derives_kv_heads = true,
       .rms_norm_eps = 1e-5,
       .pad_token_id = 1},
      {.name = "granitemoe",
       .architecture = "GraniteMoeForCausalLM",
       .experts = {.number_key = "num_local_experts",
                   .tensors = {.router = ".block_sparse_moe.router.layer",
                               .all_gate_up = ".block_sparse_moe.input_linear.weight",
                               .all_down = ".block_sparse_moe.output_linear.weight"},
                   .score = RouterScore::SoftmaxOfChosen},
       .chooses_attention_bias = true,
       .chooses_multipliers = true,
       .derives_kv_heads = true},
      {.name = "granitemoeshared",
       .architecture = "GraniteMoeSharedForCausalLM",
       .experts = {.number_key = "num_local_experts",
                   .tensors = {.router = ".block_sparse_moe.router.layer",
                               .all_gate_up = ".block_sparse_moe.input_linear.weight",
                               .all_down = ".block_sparse_moe.output_linear.weight"},
                   .score = RouterScore::SoftmaxOfChosen,
                   .shared_key = "shared_intermediate_size",
                   .fuses_shared = true},
       .chooses_attention_bias = true,
       .chooses_multipliers = true,
       .derives_kv_heads = true},
      {.name = "dots1",
       .architecture = "Dots1ForCausalLM",
       .qk_norm = QueryKeyNorm::EachHead,
       .experts = sigmoid_experts(),
       .chooses_attention_bias = true,
       .chooses_window = true,
       .chooses_layer_types = true,
       .sliding_window = 4096,
       .max_window_layers = 62},
      {.name = "glm4_moe",
       .architecture = "Glm4MoeForCausalLM",
       .qk_norm = QueryKeyNorm::EachHead,
       .experts = glm_experts(),
       .chooses_attention_bias = true,
       .biases_output = false,
       .chooses_qk_norm = true,
       .chooses_rotary_part = true,
       .rms_norm_eps = 1e-5,
       .partial_rotary_factor = 0.5},
      {.name = "gpt_oss",
       .architecture = "GptOssForCausalLM",
       .norm_weight = NormWeight::Wide,
       .has_sinks = true,
       .experts = {.number_key = "num_local_experts",
                   .tensors = {.router = ".mlp.router",
                               .all_gate_up = ".mlp.experts.gate_up_proj",
                               .all_down = ".mlp.experts.down_proj",
                               .transposed = true},
                   .score = RouterScore::SoftmaxOfChosen,
                   .has_biases = true,
                   .clamps = true},
       .chooses_attention_bias = true,
       .chooses_window = true,
       .chooses_layer_types = true,
       .attention_bias = true,
       .head_dim = 64,
       .rms_norm_eps = 1e-5,
       .rope_theta = 150000,
       .rope_scaling = gpt_oss_scaling(),
       .sliding_window = 128,
       .sliding_pattern = 2},
  };
  return all;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.push_back(family.name);
  return names;
}

const Family* find_family(const std::string& name) {
  const auto found = std::ranges::find(families(), name, &Family::name);
  return found == families().end() ? nullptr : &*found;
}

const Family& family_of(const ModelShape& shape) {
  if (const Family* family = find_family(shape.family)) return *family;
  throw InputError("there is no family of models \"" + shape.family + "\"");
}

QueryKeyNorm query_key_norm(const ModelShape& shape) {
  const Family& family = family_of(shape);
  return family.chooses_qk_norm && !shape.use_qk_norm ? QueryKeyNorm::None : family.qk_norm;
}

}  // namespace meshtrain
