#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace meshtrain {

// The arithmetic of balancing. `sequence_of` [T] int64: the index of each token's sequence, of B sequences.

/// Returns [B, E] int64: how often the tokens of each sequence chose each expert, from choices [T, k]. Where a sequence
/// is cut, sum the counts of its parts before balance_factors().
at::Tensor choice_counts(const at::Tensor& choices, int64_t num_experts, const at::Tensor& sequence_of,
                         int64_t sequences);

/// Returns [B, E]: the probabilities [T, E] summed over the tokens of each sequence.
at::Tensor sums_by_sequence(const at::Tensor& probabilities, const at::Tensor& sequence_of, int64_t sequences);

/// Returns [B, E] of `dtype`: E counts_e / (k n^2), where n = sum_e counts_e / k is the number of tokens of a sequence.
/// These factors times the sums of probabilities, summed over e, are f · P of the Switch Transformer (arXiv 2101.03961,
/// formulas 4 to 6) divided by k, which is 1 when balanced. The loss is linear in the probabilities, so the factors are
/// its gradient. This loss equals
/// - by sequence: DeepSeek-V3's balancing loss (arXiv 2412.19437, formulas 17 to 20) and Megatron's seq_aux_loss;
/// - with one row for all sequences: Megatron's aux_loss (switch_load_balancing_loss_func);
/// - for counts and sums of all layers joined: transformers' load_balancing_loss_func divided by k.
at::Tensor balance_factors(const at::Tensor& counts, int64_t top_k, at::ScalarType dtype);

/// Returns the sum over tokens of logsumexp(logits)^2 for logits [T, E], in fp32 or fp64. ST-MoE (arXiv 2202.08906,
/// formula 5) divides this sum by the number of tokens. Differentiable.
at::Tensor router_z_loss(const at::Tensor& logits);

/// Returns `carrier`. A backward that reaches it also gives `loss`, a scalar, the gradient coefficient * seed. This
/// trains `loss` without adding it to another loss. `carrier`: the slots' weights; the model's loss must use the
/// result. `seed`: a scalar on the device of `loss`, the factor of the backward (loss scale) divided by the divisor of
/// the loss.
at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss, double coefficient, const at::Tensor& seed);

/// Returns rate * sign(mean - count) for the counts [E] of all tokens of a step. Add it to the selection bias to
/// balance without a loss (arXiv 2408.15664). Integers are compared, so the same counts give the same bits on every
/// mesh. `counts`: int64, or integers in fp64.
at::Tensor selection_bias_update(const at::Tensor& counts, double rate);

}  // namespace meshtrain
