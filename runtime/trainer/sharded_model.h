#pragma once

#include <memory>
#include <vector>

#include "fsdp/fsdp.h"
#include "runtime/model/transformer.h"

namespace meshtrain {

/// A model whose layers run in the units of an Fsdp: the embedding, every `unit_layers` blocks, the head. A head that
/// shares the embedding's weight is in the same unit, which stays gathered for the complete step. Every rank of tp, cp
/// and the units makes the same calls.
class ShardedModel {
 public:
  /// `unit_layers`: blocks in a unit, at least 1; the last unit may have fewer. Collective as Fsdp's constructor is.
  ShardedModel(std::unique_ptr<Transformer> model, int64_t unit_layers, FsdpOptions options);

  /// Returns the sum of the losses of the counted tokens, a scalar. With autograd the value is available after the
  /// backward, without it at once. ids and labels: int64 [T], the tokens of `sequence`, the same on every tp rank;
  /// labels are already shifted, kIgnoredLabel where not counted.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels, const Sequence& sequence);

  /// Returns the logits for the token after the last one of a sequence. ids: int64 [s], the tokens of `sequence`,
  /// without sequence parallel and context parallel. Records nothing for autograd.
  VocabularyLogits next_logits(const at::Tensor& ids, const Sequence& sequence);

  Transformer& model() { return *model_; }
  Fsdp& fsdp() { return *fsdp_; }
  const Fsdp& fsdp() const { return *fsdp_; }

 private:
  /// Consecutive layers that run in one unit.
  struct Run {
    size_t unit;
    std::vector<Layer> layers;
  };

  std::vector<UnitSpec> make_units(int64_t unit_layers);
  at::Tensor forward(const at::Tensor& ids, const ForwardPass& pass);

  std::unique_ptr<Transformer> model_;
  std::vector<Run> runs_;  // in the order of the forward
  std::unique_ptr<Fsdp> fsdp_;
};

}  // namespace meshtrain
