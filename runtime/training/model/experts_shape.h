#pragma once

#include <cstdint>
#include <vector>

namespace meshtrain {

/// The experts of a model (Mixture of Experts), under Hugging Face's config.json names. What all models of a family
/// have in common is in family_experts.h.
struct ExpertsShape {
  int64_t num_experts = 0;                      ///< in each layer that has experts; 0: no layer has
  int64_t num_experts_per_tok = 0;              ///< experts that compute a token, at most num_experts
  int64_t moe_intermediate_size = 0;            ///< of an expert; 0: intermediate_size, in families without the key
  int64_t shared_expert_intermediate_size = 0;  ///< of the expert that computes all tokens; 0: there is none
  int64_t n_group = 1;                          ///< experts are in so many groups of equal size, side by side
  int64_t topk_group = 1;                       ///< groups from which the experts of a token are chosen
  double routed_scaling_factor = 1;             ///< of the weights of a token's experts
  double swiglu_alpha = 1.702;                  ///< gpt-oss: factor of the gate in the sigmoid
  double swiglu_limit = 7;                      ///< gpt-oss: bound of gate (above) and up (on both sides)
  bool norm_topk_prob = false;                  ///< the weights of a token's experts are divided by their sum
  std::vector<int64_t> mlp_only_layers;         ///< layers with a feed-forward layer instead of experts, ascending
  /// The coefficient of transformers' balancing loss in training; does not change the model (train.experts). 0: without
  /// output_router_logits it does not count.
  double router_aux_loss_coef = 0;

  /// Returns true when a layer has experts.
  explicit operator bool() const { return num_experts > 0; }
  bool operator==(const ExpertsShape&) const = default;
};

}  // namespace meshtrain
