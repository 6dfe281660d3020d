#pragma once

#include <optional>

#include "expert_parallel/experts.h"
#include "expert_parallel/routing.h"
#include "runtime/training/model/feed_forward.h"

namespace meshtrain {

/// A mixture of experts: each token is computed by the num_experts_per_tok experts that a router chooses for it, and
/// their results are added, times the router's weights, in the order of choice. An expert is a gated feed-forward
/// layer. A shared expert, where the family has one, adds its result for every token.
///
///   y = sum_i w_i expert_{e_i}(x) + s(x) shared(x);   s = 1, or sigmoid(x v)
///
/// The shared expert is cut over tp, as a FeedForward. Experts are cut over ep: each rank of dp, cp and tp computes
/// the routing of its own rows, which it takes of all where the residual stream is not cut over tp, and gives them to
/// the ranks of their experts. Without ep every rank holds all experts: under sequence parallel a rank computes its own
/// rows, so that gradients of router and experts are partial over tp, as those of a norm; without it every rank
/// computes all rows alike.
class MixtureOfExperts {
 public:
  /// Declares the parameters of the layer `name`, "model.layers.0.mlp", without storage:
  ///   <name>.gate.weight             [E, M]      the router; <name>.gate.bias [E] where the family has biases
  ///   <name>.gate.e_score_correction_bias  [E]   b, frozen, fp32 for halves
  ///   <name>.experts.gate_up_proj    [E, 2F, M]  of each expert gate above up, or their rows in turns (gpt-oss)
  ///   <name>.experts.down_proj       [E, M, F]
  ///   <name>.experts.gate_up_proj_bias [E, 2F], <name>.experts.down_proj_bias [E, M] where the family has biases
  ///   <name>.shared_expert...        a FeedForward; the family has its name
  ///   <name>.shared_expert_gate.weight  [1, M]   v
  /// `layer`: the index of its block.
  MixtureOfExperts(int64_t layer, const std::string& name, const ModelShape& shape, const Parallelism& parallelism,
                   const at::TensorOptions& options);

  /// Computes the layer: x [T, M] (its tp part under sequence parallel) -> the same shape. `recompute`: as for
  /// FeedForward. The host reads the number of rows of each expert; on the Meta device rows are taken as balanced.
  at::Tensor forward(const LayerInput& x, bool recompute, const Sequence& sequence) const;
  /// Returns all parameters but those of experts that are cut over ep; experts are last.
  std::vector<Parameter*> parameters();
  /// Returns the parameters of experts that are cut over ep; none without ep.
  std::vector<Parameter*> cut_experts();
  /// Sets the function in which the weights of experts that are cut over ep are there.
  void use_experts_in(WithExperts with_experts) { with_experts_ = std::move(with_experts); }

 private:
  at::Tensor logits_of(const at::Tensor& x) const;
  std::vector<Parameter*> experts();
  /// Chooses the experts of x [T, M].
  Routing choose(const at::Tensor& x, const std::shared_ptr<RouterPass>& pass) const;
  ExpertWeights expert_weights() const;
  at::Tensor compute_shared(const LayerInput& x, bool recompute, const at::Tensor& tokens) const;

  int64_t layer_;
  Router rule_;
  GatedActivation activation_;
  Group ep_, rows_over_;  // rows_over_: tp where this layer cuts the rows itself
  WithExperts with_experts_ = [](const std::function<at::Tensor()>& compute) { return compute(); };
  Parameter router_, gate_up_, down_;
  std::vector<Parameter> router_bias_;    // one or none
  std::vector<Parameter> expert_biases_;  // of gate_up_ and down_, or none
  std::optional<Parameter> selection_bias_;
  std::optional<FeedForward> shared_;
  std::optional<Parameter> shared_gate_;
};

}  // namespace meshtrain
