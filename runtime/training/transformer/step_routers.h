#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "context_parallel/sequence_layout.h"
#include "expert_parallel/router_pass.h"
#include "fsdp/fsdp.h"
#include "mesh/device_mesh.h"
#include "runtime/training/metrics/step_metrics.h"
#include "runtime/training/trainer/micro_batch.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the metrics for `sums`, the sum of StepRouters::end_step() over all parts and ranks.
ExpertMetrics expert_metrics(const TransformerOptions& options, const std::vector<double>& sums);

/// The balancing losses and counts of the routers of a part of a Transformer, in the micro-batches of a step.
class StepRouters {
 public:
  /// `mesh`: the mesh of the ranks that hold the part. Not collective.
  StepRouters(const TransformerOptions& options, const DeviceMesh& mesh, at::Device device);

  /// Begins a step; ModelPart::begin_step() calls it.
  void begin_step(const at::Tensor& scale, int64_t num_micro_batches);
  /// Ends a step; ModelPart::end_step() calls it. Returns, for this rank's tokens and layers, the sum over layers of
  /// the mean balancing loss, that of the mean z-loss, the number of dropped pairs, and how often tokens chose each
  /// expert [layers with experts, E].
  at::Tensor end_step();

  bool updates_biases() const { return options_.bias_update > 0; }
  /// Changes the selection biases in this rank's shards of `fsdp`. `sums`: the sum of end_step() over all ranks.
  /// `non_finite`: 1 to change nothing, or 0.
  void update_biases(Fsdp& fsdp, const at::Tensor& sums, const at::Tensor& non_finite) const;

  /// Begins the forward of a micro-batch, which RouterPass::end_forward() ends. Returns null outside a step.
  std::shared_ptr<RouterPass> begin_pass(const MicroBatch& micro_batch);

  /// Sets the use of choices in later steps. Tokens are numbered by sample (MicroBatch::first_sample), then by
  /// position.
  void use_choices(ChoiceUse use) { use_ = std::move(use); }
  /// Returns the choices recorded so far for the layers and tokens of this rank, in a run of `num_tokens` tokens; -1
  /// for other tokens.
  RunChoices recorded(int64_t num_tokens) const;
  /// Returns RouterPass::changed(), summed over the steps so far; 0 where another rank of tp reports the same tokens.
  at::Tensor changed() const { return speaks_ ? changed_ : at::zeros_like(changed_); }

 private:
  /// Returns the tokens, of `sequences` samples from `first_sample` on, that the routers of this rank see.
  RouterTokens tokens_of(int64_t first_sample, int64_t sequences) const;
  /// Keeps the recorded and the compared choices of `pass`.
  void keep_choices(const RouterPass& pass);

  ModelShape shape_;
  BalancingOptions options_;
  SequenceLayout layout_;
  int64_t row_parts_ = 1;  // ranks that divide the rows of a micro-batch
  int64_t row_part_ = 0;   // this rank's part
  int64_t data_ranks_;
  bool speaks_;  // false where another rank of tp reports the same tokens
  Group sharers_;
  at::Device device_;
  at::Tensor scale_;  // of the step; undefined outside a step
  int64_t num_micro_batches_ = 0;
  int64_t sequences_ = 0;  // of the step, on all ranks
  std::vector<std::shared_ptr<RouterPass>> passes_;
  ChoiceUse use_;
  struct Choices {
    size_t layer;
    at::Tensor numbers, choices;
  };
  std::vector<Choices> recorded_;
  at::Tensor changed_ = at::zeros({2}, at::kLong);
};

}  // namespace meshtrain
