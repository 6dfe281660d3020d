#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshtrain {

struct ModelShape;

/// A family of models: what its members have in common, its names in Hugging Face's config.json, and the values of keys
/// that are absent there. Choices are read from config.json; a family without a choice refuses its key.
struct Family {
  std::string name;                     ///< model_type: "qwen2"
  std::string architecture;             ///< "Qwen2ForCausalLM"
  bool qkv_bias = false;                ///< q, k and v always have biases
  bool chooses_attention_bias = false;  ///< attention_bias: biases of q, k, v and o
  bool chooses_mlp_bias = false;        ///< mlp_bias: those of gate, up and down
  bool qk_norm = false;                 ///< RMSNorm over each head of q and k
  bool derives_kv_heads = false;  ///< num_key_value_heads may be absent: as many as heads; else the key is required
  int64_t head_dim = 0;           ///< when the key is absent; 0: hidden_size / num_attention_heads
  int64_t sliding_window = 0;     ///< when the key is absent; 0: none
  bool switches_window = false;   ///< sliding_window counts only if use_sliding_window is true
};

/// Returns all families. To add one, add a row, and the layer that differs.
const std::vector<Family>& families();

/// Returns the names of all families.
std::vector<std::string> family_names();

/// Returns the family of this name; nullptr when there is none.
const Family* find_family(const std::string& name);

/// Returns the family of a shape. Throws InputError when there is none of its name.
const Family& family_of(const ModelShape& shape);

}  // namespace meshtrain
