#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/model/adapter_shape.h"
#include "runtime/training/model/experts_shape.h"

namespace meshtrain {

/// The scaling of rotary frequencies for contexts longer than the pre-trained one, with transformers' names and
/// defaults. The comments say which types have a key.
struct RopeScaling {
  std::string type;                               ///< linear llama3 yarn longrope dynamic
  double factor = 1;                              ///< all but longrope, where 1 stands for max / original positions
  double low_freq_factor = 1;                     ///< llama3
  double high_freq_factor = 4;                    ///< llama3; above low_freq_factor
  int64_t original_max_position_embeddings = 0;   ///< llama3 yarn longrope; yarn's 0: max_position_embeddings
  double beta_fast = 32;                          ///< yarn; above beta_slow
  double beta_slow = 1;                           ///< yarn
  std::optional<double> attention_factor;         ///< yarn longrope; none: from factor (and the mscales of yarn)
  std::optional<double> mscale, mscale_all_dim;   ///< yarn; both or none, none beside attention_factor
  bool truncate = true;                           ///< yarn; the bounds of the ramp are rounded to integers
  std::vector<double> short_factor, long_factor;  ///< longrope: a divisor of each frequency, for sequences of up to
                                                  ///< the original positions, and for longer ones

  bool operator==(const RopeScaling&) const = default;
};

/// The shape of a model, under Hugging Face's config.json names. What all models of a family have in common is in
/// families.h.
struct ModelShape {
  std::string family = "llama";  ///< a Family's name
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  ///< divides num_attention_heads
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;  ///< 0: not stated
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling;
  double rope_local_base_freq = 0;       ///< Gemma 3, OLMo 3: theta of sliding layers, unscaled; 0: that of all layers
  double partial_rotary_factor = 1;      ///< Phi: the part of each head that rotates
  std::vector<int64_t> no_rope_layers;   ///< SmolLM3: for each layer 1 when it rotates, else 0; empty: all rotate
  int64_t sliding_window = 0;            ///< positions that a sliding layer sees, its own included; 0: all
  std::vector<std::string> layer_types;  ///< full_attention or sliding_attention; empty: all slide, or with
                                         ///< sliding_window 0 none does
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  std::optional<int64_t> pad_token_id;  ///< fills sequences up; does not change the model (model.freeze_padding_row)
  bool use_qk_norm = false;             ///< GLM: queries and keys have norms
  bool qkv_bias = false;                ///< Qwen2; Llama with attention_bias
  bool output_bias = false;             ///< Llama with attention_bias: o_proj
  bool mlp_bias = false;                ///< Llama with mlp_bias: gate, up, down
  double embedding_multiplier = 1;      ///< Granite
  double attention_multiplier = 0;      ///< Granite: of scores; 0: 1 / sqrt(query_pre_attn_scalar)
  double residual_multiplier = 1;       ///< Granite: of what a sublayer adds to the residual stream
  double logits_scaling = 1;            ///< Granite: divides the logits
  int64_t query_pre_attn_scalar = 0;    ///< Gemma; 0: head_dim
  double attn_logit_softcapping = 0;    ///< Gemma 2: scores become c tanh(score / c); 0: they stay
  double final_logit_softcapping = 0;   ///< Gemma 2: the same of logits
  ExpertsShape experts = {};
  AdapterShape adapter = {};  ///< of the linear layers; not a key of config.json
};

/// Returns the positions that `layer` sees, its own included; 0: all before it.
int64_t window_of(const ModelShape& shape, int64_t layer);
/// Returns true when queries and keys of `layer` rotate with their position.
bool is_rotary(const ModelShape& shape, int64_t layer);
/// Returns true when queries and keys of `layer` rotate by rope_local_base_freq.
bool is_locally_rotary(const ModelShape& shape, int64_t layer);
/// Returns true when `layer` has experts, false when it has a feed-forward layer.
bool has_experts(const ModelShape& shape, int64_t layer);
/// Returns true when a layer has a feed-forward layer of intermediate_size features.
bool has_dense_layers(const ModelShape& shape);
/// Returns why experts cannot be in the groups of `experts`; empty when they can.
std::string groups_problem(const ExpertsShape& experts);
/// Returns the features of an expert.
int64_t expert_features(const ModelShape& shape);
/// Returns the number that multiplies the scores.
double attention_scale(const ModelShape& shape);
/// Returns the number of features of a head that rotate, which is even.
int64_t rotary_features(const ModelShape& shape);

}  // namespace meshtrain
