#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshtrain {

/// The scaling of rotary frequencies for contexts longer than the pre-trained one, with transformers' names and
/// defaults. The comments say which types have a key.
struct RopeScaling {
  std::string type;                              ///< linear llama3 yarn
  double factor = 1;                             ///< all; at least 1
  double low_freq_factor = 1;                    ///< llama3
  double high_freq_factor = 4;                   ///< llama3; above low_freq_factor
  int64_t original_max_position_embeddings = 0;  ///< llama3 yarn; yarn's 0 stands for max_position_embeddings
  double beta_fast = 32;                         ///< yarn; above beta_slow
  double beta_slow = 1;                          ///< yarn
  std::optional<double> attention_factor;        ///< yarn; none: from factor and the mscales
  std::optional<double> mscale, mscale_all_dim;  ///< yarn; both or none, none beside attention_factor
  bool truncate = true;                          ///< yarn; the ramp begins and ends at whole features
};

/// The shape of a Llama-family model, under Hugging Face's config.json names.
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
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;                ///< Qwen2; Llama with attention_bias
  bool output_bias = false;             ///< Llama with attention_bias: o_proj
  bool mlp_bias = false;                ///< Llama with mlp_bias: gate, up, down
  bool qk_norm = false;                 ///< Qwen3: RMSNorm over each head of q and k
  std::optional<int64_t> pad_token_id;  ///< fills sequences up; does not change the model (model.freeze_padding_row)
};

}  // namespace meshtrain
