#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "expert_parallel/routing.h"
#include "mesh/group.h"

namespace meshtrain {

/// The tokens among which a balancing loss compares the experts' shares.
enum class BalanceScope {
  None,        ///< there is no balancing loss
  Sequence,    ///< of a sequence, in each layer
  MicroBatch,  ///< of a micro-batch, in each layer
  AllLayers,   ///< of a micro-batch, in all layers joined: transformers' load_balancing_loss_func
};

struct BalancingOptions {
  BalanceScope scope = BalanceScope::None;
  double coefficient = 0;  ///< of the balancing loss
  double z_loss = 0;       ///< coefficient of the z-loss
  double bias_update = 0;  ///< change of an expert's selection bias in a step (selection_bias_update()); not for a pass
};

/// The tokens of a micro-batch that the routers of this rank see.
struct RouterTokens {
  int64_t sequences = 1;    ///< B, cut or not
  int64_t length = 1;       ///< S, of a complete sequence
  at::Tensor sequence_of;   ///< int64 [T]: the sequence of each token
  Group sharers = {};       ///< ranks that see the other tokens of these sequences
  at::Tensor numbers = {};  ///< int64 [T]: the number of each token in the run; for ChoiceUse alone
};

/// The choices of all tokens of a run: by layer of the model, int64 [tokens, k]; undefined for layers without experts.
using RunChoices = std::vector<at::Tensor>;

/// A use of choices besides computing with them.
struct ChoiceUse {
  bool records = false;                              ///< keeps the choices
  std::shared_ptr<const RunChoices> reference = {};  ///< counts the tokens that choose others than this run did
  bool replays = false;                              ///< computes with the choices of `reference`
};

/// The routers of a model's layers in the forward and the backward of one micro-batch. It keeps the counts of choices,
/// and adds balancing losses to the backward:
///
///   seed * (coefficient * sum of the losses of layers and sequences + z_loss / S * sum of those of layers and tokens)
///
/// with S the tokens of a sequence. A loss among the tokens of a micro-batch counts once for each of its B sequences. A
/// layer that is recomputed counts once, and uses the counts of its first forward.
class RouterPass : public std::enable_shared_from_this<RouterPass> {
 public:
  /// `seed`: a scalar, the factor of the backward (loss scale) over the sequences of a step. `num_layers`: of the
  /// model, with and without experts.
  RouterPass(const BalancingOptions& options, RouterTokens tokens, at::Tensor seed, int64_t num_layers,
             ChoiceUse use = {});

  /// Returns route() of these arguments, or the replayed choices with their weights. The backward reaches the weights
  /// with the gradients of the losses of `layer`. Not collective.
  Routing route_tokens(int64_t layer, const Router& router, const at::Tensor& logits,
                       const at::Tensor& selection_bias = {});

  /// Ends the forward of the layers that this rank has: sums their counts over the sharers, where a loss needs them.
  /// Every sharer must call it, before the backward.
  void end_forward();

  /// Returns the sum over layers and sequences of the balancing loss of this rank's tokens, which ranks add up to the
  /// complete one, and of the z-loss over S: fp64 [2].
  at::Tensor losses() const;
  /// Returns how often this rank's tokens have chosen each expert of `layer`: int64 [E]; undefined: it has no experts,
  /// or is not this rank's.
  at::Tensor counts(int64_t layer) const;

  /// Returns the recorded choices of `layer`, int64 [T, k]; undefined like counts(), and when nothing is recorded.
  at::Tensor choices(int64_t layer) const { return layers_.at(static_cast<size_t>(layer)).choices; }
  /// Returns the number of this rank's tokens, in all layers, whose choices are not those of the reference; and the
  /// number of those compared: int64 [2].
  at::Tensor changed() const;
  const RouterTokens& tokens() const { return tokens_; }

  /// Returns the gradient of balancing losses with respect to the probabilities of `layer`, [T, E] of `dtype`.
  at::Tensor gradient(int64_t layer, at::ScalarType dtype) const;

 private:
  struct Layer {
    int64_t top_k = 0;
    at::Tensor own_counts;  // [rows, E] int64
    at::Tensor counts;      // the same, of all sharers: a view of sums_
    at::Tensor sums;        // [rows, E] of probabilities of this rank's tokens
    at::Tensor z;           // sum over this rank's tokens
    at::Tensor choices;     // when they are recorded
    at::Tensor changed;     // scalar: number of tokens that choose others than the reference
  };

  at::Tensor balanced_weights(Layer& of, int64_t layer, bool is_first, const Router& router, const at::Tensor& logits,
                              const Routing& routing);
  /// Returns the choices of the reference for this rank's tokens.
  at::Tensor reference_of(int64_t layer) const;
  int64_t rows() const { return options_.scope == BalanceScope::Sequence ? tokens_.sequences : 1; }
  /// Returns the factors of probabilities, [rows, E], such that losses count once for each sequence.
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
