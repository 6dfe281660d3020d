#pragma once

#include <cstdint>
#include <vector>

#include "runtime/training/model/transformer.h"

namespace meshtrain {

/// Returns the floating-point operations of forward and backward for one token of a sequence of `sequence_length`
/// tokens, an average over them:
///
///   6 (N - V h) + 6 L q s
///
/// N: parameters, of which the embedding's V h are looked up and not multiplied by, while a head, tied or not, counts;
/// L layers; q: num_attention_heads * head_dim; s: sequence_length. That is two operations an element in the forward,
/// two for the gradient of what came in and two for that of the parameter; attention as causal, half of all pairs (a
/// window of w < s sees w - w^2 / (2 s) keys instead of s / 2), of one document. What is computed again in the backward
/// does not count. Source: Chowdhery et al. 2022, PaLM, appendix B, with half of the pairs.
///
/// Of a layer's experts N counts those of one token alone: k / E of them, with k of E experts for each.
///
/// A frozen parameter has no gradient, and what came in needs one only where a parameter before it is trained.
double flops_per_token(Transformer& model, const ModelShape& shape, int64_t sequence_length);

/// Returns these operations for each of Transformer::layers().
std::vector<double> layer_flops(Transformer& model, const ModelShape& shape, int64_t sequence_length);

}  // namespace meshtrain
