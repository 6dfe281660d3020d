#include "runtime/training/model/shape.h"

#include <algorithm>
#include <cmath>

namespace meshtrain {
namespace {

bool slides(const ModelShape& shape, int64_t layer) {
  if (shape.layer_types.empty()) return shape.sliding_window > 0;
  return shape.layer_types.at(static_cast<size_t>(layer)) == "sliding_attention";
}

}  // namespace

int64_t window_of(const ModelShape& shape, int64_t layer) {
  return slides(shape, layer) ? shape.sliding_window : 0;
}

bool is_rotary(const ModelShape& shape, int64_t layer) {
  return shape.no_rope_layers.empty() || shape.no_rope_layers.at(static_cast<size_t>(layer)) != 0;
}

bool is_locally_rotary(const ModelShape& shape, int64_t layer) {
  return shape.rope_local_base_freq > 0 && slides(shape, layer);
}

bool has_experts(const ModelShape& shape, int64_t layer) {
  return shape.experts && !std::ranges::binary_search(shape.experts.mlp_only_layers, layer);
}

bool has_dense_layers(const ModelShape& shape) {
  return !shape.experts || !shape.experts.mlp_only_layers.empty();
}

std::string groups_problem(const ExpertsShape& experts) {
  const int64_t groups = experts.n_group, chosen = experts.topk_group;
  if (groups == 1 && chosen == 1) return "";
  const std::string number = "n_group " + std::to_string(groups);
  if (experts.num_experts % groups != 0 || experts.num_experts / groups < 2) {
    return number + " does not divide " + std::to_string(experts.num_experts) + " experts into groups of two or more";
  }
  if (chosen > groups) return "topk_group " + std::to_string(chosen) + " is more than " + number;
  if (experts.num_experts_per_tok <= chosen * (experts.num_experts / groups)) return "";
  return "topk_group " + std::to_string(chosen) + " leaves fewer than num_experts_per_tok " +
         std::to_string(experts.num_experts_per_tok) + " experts";
}

int64_t expert_features(const ModelShape& shape) {
  const int64_t own = shape.experts.moe_intermediate_size;
  return own > 0 ? own : shape.intermediate_size;
}

double attention_scale(const ModelShape& shape) {
  if (shape.attention_multiplier > 0) return shape.attention_multiplier;
  const int64_t scalar = shape.query_pre_attn_scalar > 0 ? shape.query_pre_attn_scalar : shape.head_dim;
  return 1 / std::sqrt(static_cast<double>(scalar));
}

int64_t rotary_features(const ModelShape& shape) {
  return static_cast<int64_t>(static_cast<double>(shape.head_dim) * shape.partial_rotary_factor);
}

}  // namespace meshtrain
