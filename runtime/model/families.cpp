#include "runtime/model/families.h"

#include <algorithm>

#include "mesh/error.h"
#include "runtime/model/shape.h"

namespace meshtrain {

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {.name = "llama",
       .architecture = "LlamaForCausalLM",
       .chooses_attention_bias = true,
       .chooses_mlp_bias = true,
       .derives_kv_heads = true},
      {.name = "mistral", .architecture = "MistralForCausalLM", .sliding_window = 4096},
      {.name = "qwen2", .architecture = "Qwen2ForCausalLM", .qkv_bias = true, .switches_window = true},
      {.name = "qwen3",
       .architecture = "Qwen3ForCausalLM",
       .chooses_attention_bias = true,
       .qk_norm = true,
       .head_dim = 128,
       .switches_window = true},
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
