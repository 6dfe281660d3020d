#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/fsdp.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/transformer/activation_offload.h"
#include "runtime/training/transformer/model_fsdp.h"
#include "runtime/training/transformer/unit_options.h"

namespace meshtrain {

/// Consecutive layers of a model that run in the units of an Fsdp: the embedding, the units of the blocks
/// (UnitOptions), the head. A head that shares the embedding's weight is in the embedding's unit, which stays gathered
/// for the complete step. If the embedding is not among the layers, such a head has a copy of the weight in its own
/// unit (UnitSpec::is_copy). Experts that are cut over ep run in the units of a second Fsdp, one for each block, inside
/// the block's forward. Every rank of tp, cp, ep and the units makes the same calls.
class ShardedModel {
 public:
  /// `layers`: this model's range of Transformer::layers(), at least one layer. No other ShardedModel may have layers
  /// of `model` that use the same parameters. Collective like Fsdp's constructor. Throws std::invalid_argument when
  /// `units` divides units of several blocks into sublayers, or when the head of another model shares the weight of a
  /// trained embedding that has an adapter.
  ShardedModel(std::shared_ptr<Transformer> model, Range layers, const UnitOptions& units, ModelFsdp options);

  /// Makes forwards that record for autograd keep the activations of blocks in host memory. `device`: see
  /// ActivationOffload. Call it once, before the first forward.
  void offload_activations(at::Device device);

  /// Runs the layers: see Layer.
  at::Tensor forward(const at::Tensor& input, const ForwardPass& pass);

  /// Returns the logits for the token after the last one of a sequence. ids: int64 [s], the tokens of `sequence`,
  /// without sequence parallel and context parallel. Records nothing for autograd.
  VocabularyLogits next_logits(const at::Tensor& ids, const Sequence& sequence);

  /// Gathers the units as next_logits() does, without computing. Call it instead of next_logits() on a rank that has no
  /// tokens while other ranks of the units call next_logits(): their gathers need this rank's shards.
  void gather_only();

  /// Returns the embedding's weight when the head shares it and either the head or the embedding is in another model;
  /// null otherwise. The weight is then in its own unit, whose gradient must be summed with that of the other model.
  const Parameter* shared_weight() const { return shared_; }

  Transformer& model() { return *model_; }
  Fsdp& fsdp() { return *fsdp_; }
  const Fsdp& fsdp() const { return *fsdp_; }
  /// Returns the Fsdp of the experts that are cut over ep; null when these layers have none.
  Fsdp* experts() const { return experts_.get(); }
  /// Returns the offload of activations; null when they stay on the device.
  const ActivationOffload* activation_offload() const { return offload_ ? &*offload_ : nullptr; }

 private:
  /// Consecutive layers that run in one unit, or a block whose sublayers run in `unit` and the units after it.
  struct Run {
    size_t unit;
    std::vector<Layer> layers;
    bool by_sublayer = false;
    bool uses_copy = false;  // a head that uses the copy of the embedding's weight, the first unit
  };

  std::vector<UnitSpec> make_units(Range range, const UnitOptions& options);
  /// Puts the experts of each block into a unit; the block uses them within this unit.
  void make_experts(const std::optional<FsdpOptions>& options);
  at::Tensor run(const Run& run, const at::Tensor& x, const ForwardPass& pass);
  at::Tensor run_layers(const Run& run, const at::Tensor& x, const ForwardPass& pass);
  /// Returns part(), the forward of `layer` or of one of its sublayers, and offloads the activations that a block
  /// saves.
  at::Tensor compute(const Layer& layer, const ForwardPass& pass, const std::function<at::Tensor()>& part);
  /// Ends a layer whose result is `y`.
  void end_layer(const Layer& layer, const at::Tensor& y);

  std::shared_ptr<Transformer> model_;
  const Parameter* shared_ = nullptr;
  std::vector<Run> runs_;  // in the order of the forward
  std::unique_ptr<Fsdp> fsdp_, experts_;
  std::optional<ActivationOffload> offload_;
};

}  // namespace meshtrain
