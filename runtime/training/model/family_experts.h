#pragma once

#include <string>

#include "expert_parallel/routing.h"

namespace meshtrain {

/// The names by which folders of a family store a layer's experts, after "model.layers.N". `%` stands for the number of
/// an expert.
struct ExpertTensors {
  std::string router = ".mlp.gate";  ///< the layer: its tensors are weight and, of some families, bias
  std::string gate = ".mlp.experts.%.gate_proj.weight";
  std::string up = ".mlp.experts.%.up_proj.weight";
  std::string down = ".mlp.experts.%.down_proj.weight";
  /// Not empty: one tensor has gate and up of all experts, another one their down, and the three names do not count.
  std::string all_gate_up = "", all_down = "";
  bool transposed = false;  ///< those two have the columns of the parameters as rows
};

/// What the mixtures of a family have in common, and its names and choices in config.json.
struct FamilyExperts {
  std::string number_key = "";        ///< key of num_experts; empty: the family has no experts
  std::string other_number_key = "";  ///< another name that transformers has for it
  ExpertTensors tensors = {};

  RouterScore score = RouterScore::Softmax;
  bool normalises = false;          ///< norm_topk_prob is always true, or where the key is absent
  bool wide_weights = false;        ///< the weights keep the scores' fp32, instead of the model's dtype
  bool wide_logits = false;         ///< the router's product is in fp32 for halves
  bool has_selection_bias = false;  ///< an expert is chosen by its score plus a bias that is not trained
  std::string shared_key = "";      ///< key of shared_expert_intermediate_size; empty: there is no shared expert
  std::string shared_name = "shared_expert";  ///< of the layer with a shared expert, in names of parameters
  bool counts_shared = false;                 ///< shared_key is a number of experts of moe_intermediate_size
  bool needs_shared = false;                  ///< each model has a shared expert
  bool fuses_shared = false;  ///< folders have it as shared_mlp.input_linear and shared_mlp.output_linear
  bool has_biases = false;    ///< the router, gate and up, and down have biases
  bool clamps = false;        ///< swiglu_limit, swiglu_alpha: clamped_activation(), gate and up interleaved
  bool gates_shared = false;  ///< the shared expert's result is multiplied by a sigmoid of a product

  // Keys that a model of the family may have.
  bool chooses_size = false;           ///< moe_intermediate_size; else an expert has intermediate_size
  bool chooses_normalisation = false;  ///< norm_topk_prob
  bool chooses_dense_layers = false;   ///< mlp_only_layers, decoder_sparse_step
  bool chooses_first_dense = false;    ///< first_k_dense_replace
  bool chooses_groups = false;         ///< n_group, topk_group, routed_scaling_factor

  // The values of absent keys.
  int64_t first_k_dense_replace = 0;
  double router_aux_loss_coef = 0.001;  ///< 0: transformers trains without a balancing loss

  explicit operator bool() const { return !number_key.empty(); }
};

}  // namespace meshtrain
