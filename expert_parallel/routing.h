#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshtrain {

/// The scores of experts, from which they are chosen and weighted.
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
  bool normalises = false;      ///< weights are divided by their sum over the slots; not for SoftmaxOfChosen
  double weight_scale = 1;      ///< factor of the weights, after that
  bool rounds_weights = false;  ///< weights are rounded to the logits' dtype; else they have the scores' dtype
  int64_t num_groups = 1;       ///< experts are in so many groups of equal size, side by side
  int64_t chosen_groups = 1;    ///< experts are chosen from the groups whose two best scores have the largest sums
};

/// The experts of each token.
struct Routing {
  at::Tensor choices;  ///< [T, k] int64, by descending score (with the selection bias) where this run has chosen
  at::Tensor weights;  ///< [T, k], differentiable with respect to the logits
};

/// Chooses the experts of T tokens from logits [T, E]. Scores are fp32, for logits in fp64 fp64. `selection_bias` [E]
/// or undefined: added to the scores for the choice alone; weights are the scores without it. `replayed` [T, k] int64:
/// choices to take instead of choosing; undefined: choose. The row of a token depends on its logits alone. Throws
/// std::invalid_argument when the router's numbers do not fit each other or the shapes.
///
/// Dtypes in transformers: Mixtral's weights stay fp32 after logits in halves; those of Qwen, OLMoE, Granite and
/// gpt-oss are rounded to halves; DeepSeek-V3 computes the logits themselves in fp32, which is the caller's product.
Routing route(const Router& router, const at::Tensor& logits, const at::Tensor& selection_bias = {},
              const at::Tensor& replayed = {});

/// Returns the probabilities [T, E] of logits [T, E] for balancing losses, in the scores' dtype: softmax over all
/// experts, or sigmoid scores divided by their sum (DeepSeek-V3, arXiv 2412.19437, formula 19). Differentiable.
at::Tensor router_probabilities(const Router& router, const at::Tensor& logits);

}  // namespace meshtrain
