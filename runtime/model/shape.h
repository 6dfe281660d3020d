#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshtrain {

/// Frequencies of rotary embeddings for contexts longer than the pre-trained one (transformers' "llama3").
struct RopeScaling {
  std::string type = "llama3";
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

/// The shape of a Llama-family model, under Hugging Face's config.json names.
struct ModelShape {
  std::string family = "llama";  ///< llama mistral qwen2 qwen3
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
  bool qkv_bias = false;     ///< Qwen2; Llama with attention_bias
  bool output_bias = false;  ///< Llama with attention_bias: o_proj
  bool mlp_bias = false;     ///< Llama with mlp_bias: gate, up, down
  bool qk_norm = false;      ///< Qwen3: RMSNorm over each head of q and k
};

}  // namespace meshtrain
