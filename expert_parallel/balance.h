#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshtrain {

// The arithmetic of balancing. `sequence_of` [T] int64: the sequence, of B, of each token.

/// Returns [B, E] int64: how often tokens of each sequence have chosen each expert, from choices [T, k]. Where a
/// sequence is cut, the counts of its parts are to be summed before balance_factors().
at::Tensor choice_counts(const at::Tensor& choices, int64_t num_experts, const at::Tensor& sequence_of,
                         int64_t sequences);

/// Returns [B, E]: the sums of probabilities [T, E] over the tokens of each sequence.
at::Tensor sums_by_sequence(const at::Tensor& probabilities, const at::Tensor& sequence_of, int64_t sequences);

/// Returns [B, E] of `dtype`: E counts_e / (k n^2), with n = sum_e counts_e / k the tokens of a sequence. The sum over
/// e of these factors times the sums of probabilities is f · P of the Switch Transformer (arXiv 2101.03961, formulas 4
/// to 6) divided by k, 1 when balanced. By sequence it is DeepSeek-V3's balancing loss (arXiv 2412.19437, formulas 17
/// to 20) and Megatron's seq_aux_loss, with one row for all sequences Megatron's aux_loss
/// (switch_load_balancing_loss_func). For counts and sums of all layers joined it is transformers'
/// load_balancing_loss_func divided by k. The loss is linear in the probabilities: these factors are its gradient.
at::Tensor balance_factors(const at::Tensor& counts, int64_t top_k, at::ScalarType dtype);

/// Returns the sum over tokens of logsumexp(logits)^2 for logits [T, E] (ST-MoE, arXiv 2202.08906, formula 5, which
/// divides it by the tokens), in fp32 or fp64. Differentiable.
at::Tensor router_z_loss(const at::Tensor& logits);

/// Returns `carrier`; the backward that reaches it also gives `loss`, a scalar, the gradient coefficient * seed. So the
/// loss takes part without being added to another. `carrier` must be used by the model's loss: the slots' weights.
/// `seed`: a scalar on the device of `loss`, the factor of the backward (loss scale) over what the loss is divided by.
at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss, double coefficient, const at::Tensor& seed);

/// Returns rate * sign(mean - count) for a step's counts [E] of all its tokens, to be added to the selection bias:
/// balancing without a loss (arXiv 2408.15664). Comparison of integers: the same counts give the same bits on every
/// mesh. `counts`: int64, or whole numbers in fp64.
at::Tensor selection_bias_update(const at::Tensor& counts, double rate);

}  // namespace meshtrain
