#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshtrain {

// Balancing losses are sums over the sequences or tokens of their arguments; what they are divided by is part of the
// seed, so that all meshes add the same numbers. `mask` [T] bool: the tokens that count; undefined: all. Tokens are in
// the order of their sequences, equally many of each.

/// Returns [B, E] int64: how often tokens of each of B sequences have chosen each expert, from choices [T, k]. Under
/// context parallelism the counts of a sequence's parts are to be summed before balance_loss(). B = 1: of a
/// micro-batch.
at::Tensor choice_counts(const at::Tensor& choices, int64_t num_experts, int64_t sequences,
                         const at::Tensor& mask = {});

/// Returns the sum over B sequences of E / (k n^2) sum_e counts_e sum_t p_te, with n = sum_e counts_e / k the tokens
/// that count: f · P of the Switch Transformer (arXiv 2101.03961, formulas 4 to 6) divided by k, 1 when balanced. By
/// sequence it is DeepSeek-V3's (arXiv 2412.19437, formulas 17 to 20) and Megatron's seq_aux_loss, with B = 1
/// Megatron's aux_loss (switch_load_balancing_loss_func). `probabilities` [T, E] of this rank's tokens
/// (router_probabilities()); `counts` [B, E] of all tokens of each sequence. Where a sequence is cut, ranks' results
/// add up to the loss. Differentiable with respect to `probabilities`.
at::Tensor balance_loss(const at::Tensor& probabilities, const at::Tensor& counts, int64_t top_k,
                        const at::Tensor& mask = {});

/// Returns transformers' load_balancing_loss_func: E sum_e (counts_e / n) (sum p_e / n) over the tokens of all layers
/// joined, n = tokens times layers; k when balanced. Item i is layer i's: probabilities [T, E], choices [T, k].
/// Differentiable.
at::Tensor joined_balance_loss(const std::vector<at::Tensor>& probabilities, const std::vector<at::Tensor>& choices,
                               const at::Tensor& mask = {});

/// Returns the sum over tokens of logsumexp(logits)^2 for logits [T, E] (ST-MoE, arXiv 2202.08906, formula 5, which
/// divides it by the tokens), in fp32 or fp64. Differentiable.
at::Tensor router_z_loss(const at::Tensor& logits, const at::Tensor& mask = {});

/// Returns `carrier`; the backward that reaches it also gives `loss`, a scalar, the gradient coefficient * seed. So the
/// loss takes part without being added to another. `carrier` must be used by the model's loss: the slots' weights.
/// `seed`: a scalar on the device of `loss`, the factor of the backward (loss scale) over what the loss is divided by;
/// undefined: 1. `loss` itself is for metrics, detached.
at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss, double coefficient,
                       const at::Tensor& seed = {});

/// Adds rate * sign(mean - count) to the selection bias [E] for a step's counts [E] int64 of all its tokens: balancing
/// without a loss (arXiv 2408.15664). `centred`: subtracts the mean of these updates, as torchtitan does.
/// Exact comparison of integers: the same counts give the same bits on every mesh.
void update_selection_bias(const at::Tensor& bias, const at::Tensor& counts, double rate, bool centred = false);

}  // namespace meshtrain
