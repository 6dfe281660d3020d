#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshtrain {

/// The scores by which experts are chosen and weighted.
enum class RouterScore {
  Softmax,          ///< softmax over all experts, then the largest k (Mixtral, Qwen, OLMoE)
  SoftmaxOfChosen,  ///< the largest k logits, then softmax over those (gpt-oss, Granite)
  Sigmoid,          ///< sigmoid of each logit (DeepSeek-V3)
};

/// A family's rule for choosing k of E experts for each token.
struct Router {
  RouterScore score = RouterScore::Softmax;
  int64_t num_experts = 0;      ///< E
  int64_t top_k = 0;            ///< k, the slots of a token
  bool normalises = false;      ///< divides weights by their sum over the slots; not for SoftmaxOfChosen
  double weight_scale = 1;      ///< factor of the weights, after normalising
  bool rounds_weights = false;  ///< rounds weights to the logits' dtype; else they keep the scores' dtype
  int64_t num_groups = 1;       ///< number of groups of consecutive experts, of equal size
  int64_t chosen_groups = 1;    ///< number of groups to choose from: those with the largest sums of two best scores
};

/// The experts of each token.
struct Routing {
  at::Tensor choices;       ///< [T, k] int64, by descending score (with the selection bias) unless replayed
  at::Tensor weights;       ///< [T, k], differentiable with respect to the logits
  at::Tensor dropped = {};  ///< [T, k] bool: pairs that are not computed (capacity.h); undefined: none

  /// Returns the choices for sort_by_expert() of `num_experts` experts.
  at::Tensor computed(int64_t num_experts) const {
    return dropped.defined() ? choices.masked_fill(dropped, num_experts) : choices;
  }
};

/// Chooses the experts of T tokens from logits [T, E]. Scores are fp32, or fp64 for logits in fp64. A token's result
/// depends only on its own logits. `selection_bias`: [E] or undefined; added to the scores for the choice, but not for
/// the weights. `replayed`: [T, k] int64, choices to take instead of choosing; undefined: choose. Throws
/// std::invalid_argument when the router's numbers do not fit each other or the shapes.
///
/// Dtypes in transformers for logits in halves: Mixtral's weights stay fp32; those of Qwen, OLMoE, Granite and gpt-oss
/// are rounded to halves. DeepSeek-V3 computes the logits themselves in fp32; the caller computes this product.
Routing route(const Router& router, const at::Tensor& logits, const at::Tensor& selection_bias = {},
              const at::Tensor& replayed = {});

/// Returns the probabilities [T, E] of logits [T, E] for balancing losses, in the scores' dtype: softmax over all
/// experts, or sigmoid scores divided by their sum (DeepSeek-V3, arXiv 2412.19437, formula 19). Differentiable.
at::Tensor router_probabilities(const Router& router, const at::Tensor& logits);

}  // namespace meshtrain
