#include "runtime/training/model/families.h"

#include <algorithm>

#include "mesh/base/error.h"

namespace meshtrain {

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
       .sliding_window = 4096},
      {.name = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .qk_norm = QueryKeyNorm::EachHead,
       .chooses_attention_bias = true,
       .chooses_window = true,
       .chooses_layer_types = true,
       .switches_window = true,
       .head_dim = 128,
       .sliding_window = 4096},
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

}  // namespace meshtrain
