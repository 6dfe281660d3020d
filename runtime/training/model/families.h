#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/model/family_experts.h"
#include "runtime/training/model/pieces.h"
#include "runtime/training/model/shape.h"

namespace meshtrain {

/// A family of models: what its members have in common, its names in Hugging Face's config.json, and the values of keys
/// that are absent there. Choices are read from config.json; a family without a choice refuses its key.
struct Family {
  std::string name;          ///< model_type: "qwen2"
  std::string architecture;  ///< "Qwen2ForCausalLM"

  // The layers.
  NormWeight norm_weight = NormWeight::Rounded;
  NormPlacement norm_placement = NormPlacement::Before;
  QueryKeyNorm qk_norm = QueryKeyNorm::None;
  Activation activation = Activation::Silu;
  bool qkv_bias = false;           ///< q, k and v always have biases
  bool has_sinks = false;          ///< each query head has a sink (context_parallel/sinks.h)
  bool scales_embedding = false;   ///< embeddings are multiplied by sqrt(hidden_size), rounded to their dtype
  bool fused_projections = false;  ///< folders have qkv_proj and gate_up_proj instead of their parts
  FamilyExperts experts = {};

  // Keys that a model of the family may have.
  bool chooses_attention_bias = false;  ///< attention_bias: biases of q, k, v and o
  bool biases_output = true;            ///< attention_bias counts for o too
  bool chooses_mlp_bias = false;        ///< mlp_bias: those of gate, up and down
  bool chooses_multipliers = false;     ///< embedding_, attention_, residual_multiplier, logits_scaling
  bool chooses_rotary_layers = false;   ///< no_rope_layers
  bool chooses_qk_norm = false;         ///< use_qk_norm: whether there is qk_norm
  bool chooses_rotary_part = false;     ///< partial_rotary_factor
  bool chooses_longrope = false;        ///< rope_type longrope, and no other scaling
  bool chooses_query_scalar = false;    ///< query_pre_attn_scalar
  bool chooses_softcaps = false;        ///< attn_logit_softcapping, final_logit_softcapping
  bool chooses_local_theta = false;     ///< rope_local_base_freq, unscaled: the theta of sliding layers
  bool names_local_theta = false;       ///< config.json may have it by this name; else in rope_parameters alone
  bool chooses_window = false;          ///< sliding_window
  bool chooses_window_pattern = false;  ///< sliding_window_pattern, where layer_types is absent
  bool chooses_layer_types = false;     ///< layer_types; other families' layers are all alike
  bool switches_window = false;         ///< sliding_window counts only if use_sliding_window is true

  // The values of absent keys, as in transformers; 0: none, unless stated.
  bool attention_bias = false;
  bool derives_kv_heads = false;  ///< num_key_value_heads: as many as heads; else the key is required
  int64_t head_dim = 0;           ///< 0: hidden_size / num_attention_heads
  int64_t query_pre_attn_scalar = 0;
  double attn_logit_softcapping = 0;
  double final_logit_softcapping = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling = {};  ///< of a config.json alone: recipes have none without the key
  double rope_local_base_freq = 0;
  double partial_rotary_factor = 1;
  int64_t sliding_window = 0;
  int64_t max_window_layers = 0;  ///< layer_types: layers from this one on slide; 0: the family has no such key
  int64_t sliding_pattern = 0;    ///< layer_types: every such layer is full, the others slide; 0: all slide
  bool tie_word_embeddings = false;
  int64_t pad_token_id = -1;  ///< -1: none
};

/// Returns all families. To add one, add a row, and the layer that differs.
const std::vector<Family>& families();

/// Returns the names of all families.
std::vector<std::string> family_names();

/// Returns the family of this name; nullptr when there is none.
const Family* find_family(const std::string& name);

/// Returns the family of a shape. Throws InputError when there is none of its name.
const Family& family_of(const ModelShape& shape);

/// Returns the norms of queries and keys in a model of this shape.
QueryKeyNorm query_key_norm(const ModelShape& shape);

}  // namespace meshtrain
