#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "expert_parallel/routing.h"
#include "mesh/group.h"

namespace meshtrain {

/// The set of tokens over which a balancing loss is computed.
enum class BalanceScope {
  None,        ///< no balancing loss
  Sequence,    ///< the tokens of one sequence, in each layer
  MicroBatch,  ///< the tokens of one micro-batch, in each layer
  AllLayers,   ///< the tokens of one micro-batch, in all layers joined: transformers' load_balancing_loss_func
};

struct BalancingOptions {
  BalanceScope scope = BalanceScope::None;
  double coefficient = 0;  ///< coefficient of the balancing loss
  double z_loss = 0;       ///< coefficient of the z-loss
  double bias_update = 0;  ///< rate of selection_bias_update(), per step; a RouterPass does not use it
  /// The most tokens of a micro-batch that an expert computes, as a multiple of the balanced number; none: no limit.
  std::optional<double> capacity_factor = {};
};

/// The tokens of a micro-batch that the routers of this rank see.
struct RouterTokens {
  int64_t sequences = 1;    ///< B, including sequences that are cut
  int64_t length = 1;       ///< S, the length of a complete sequence
  at::Tensor sequence_of;   ///< int64 [T]: the sequence of each token
  Group sharers = {};       ///< the ranks that see the other tokens of these sequences
  at::Tensor numbers = {};  ///< int64 [T]: the number of each token in the run; only ChoiceUse and a capacity need it
};

/// The choices of all tokens of a run, by layer of the model: int64 [tokens, k]; undefined for layers without experts.
using RunChoices = std::vector<at::Tensor>;

/// The options to record choices, or to compare them with or replay those of another run.
struct ChoiceUse {
  bool records = false;                              ///< records the choices
  std::shared_ptr<const RunChoices> reference = {};  ///< the other run; tokens that choose other experts are counted
  bool replays = false;                              ///< computes with the choices of `reference`
};

/// The routers of a model's layers in the forward and the backward of one micro-batch. It counts choices, and adds
/// balancing losses to the backward:
///
///   seed * (coefficient * sum of the losses of layers and sequences + z_loss / S * sum of those of layers and tokens)
///
/// where S is the number of tokens of a sequence. A loss over the tokens of a micro-batch counts once for each of its B
/// sequences. A recomputed layer counts once, with the counts of its first forward.
class RouterPass : public std::enable_shared_from_this<RouterPass> {
 public:
  /// `seed`: a scalar, the factor of the backward (loss scale) divided by the sequences of a step. `num_layers`: the
  /// number of layers of the model, with and without experts.
  RouterPass(const BalancingOptions& options, RouterTokens tokens, at::Tensor seed, int64_t num_layers,
             ChoiceUse use = {});

  /// Returns route() of these arguments, or the replayed choices with their weights, and the pairs that a capacity
  /// drops. The backward of the weights adds the gradients of the losses of `layer`. Losses and counts are those of all
  /// choices. With a capacity every sharer must call it; a layer that is computed again drops the same pairs and
  /// communicates nothing.
  Routing route_tokens(int64_t layer, const Router& router, const at::Tensor& logits,
                       const at::Tensor& selection_bias = {});

  /// Ends the forward of this rank's layers: sums their counts over the sharers if a loss needs them. Every sharer must
  /// call it, before the backward.
  void end_forward();

  /// Returns fp64 [2]: the balancing loss of this rank's tokens, summed over layers and sequences, and their z-loss
  /// divided by S. The sum over ranks is the complete loss.
  at::Tensor losses() const;
  /// Returns int64 [E]: how often this rank's tokens chose each expert of `layer`. Undefined when the layer has no
  /// experts or is not on this rank.
  at::Tensor counts(int64_t layer) const;

  /// Returns the number of pairs of this rank's tokens that are dropped in `layer`: an int64 scalar, undefined for
  /// none.
  at::Tensor num_dropped(int64_t layer) const;

  /// Returns the recorded choices of `layer`, int64 [T, k]. Undefined as counts() is, and when choices are not
  /// recorded.
  at::Tensor choices(int64_t layer) const { return layers_.at(static_cast<size_t>(layer)).choices; }
  /// Returns int64 [2], over all layers: the number of this rank's tokens whose choices differ from the reference, and
  /// the number of tokens compared.
  at::Tensor changed() const;
  const RouterTokens& tokens() const { return tokens_; }

  /// Returns the gradient of the balancing losses with respect to the probabilities of `layer`, [T, E] of `dtype`.
  at::Tensor gradient(int64_t layer, at::ScalarType dtype) const;

 private:
  struct Layer {
    int64_t top_k = 0;
    at::Tensor own_counts;  // [rows, E] int64
    at::Tensor counts;      // the same, summed over all sharers: a view of sums_
    at::Tensor sums;        // [rows, E]: probabilities summed over this rank's tokens
    at::Tensor z;           // z-loss summed over this rank's tokens
    at::Tensor choices;     // if recorded
    at::Tensor dropped;     // [T, k] bool; undefined: none
    at::Tensor changed;     // scalar: number of tokens whose choices differ from the reference
  };

  at::Tensor balanced_weights(Layer& of, int64_t layer, bool is_first, const Router& router, const at::Tensor& logits,
                              const Routing& routing);
  /// Returns the pairs of `choices` that a capacity drops.
  at::Tensor dropped(const Router& router, const at::Tensor& choices) const;
  /// Returns the choices of the reference for this rank's tokens.
  at::Tensor reference_of(int64_t layer) const;
  int64_t rows() const { return options_.scope == BalanceScope::Sequence ? tokens_.sequences : 1; }
  /// Returns the factors of the probabilities, [rows, E], scaled so that a loss counts once for each sequence.
  at::Tensor factors(const Layer& layer, at::ScalarType dtype) const;

  BalancingOptions options_;
  RouterTokens tokens_;
  at::Tensor seed_;
  ChoiceUse use_;
  std::vector<Layer> layers_;
  at::Tensor sums_;  // counts of all layers, [layers, rows, E]
  Work summed_;
};

}  // namespace meshtrain
