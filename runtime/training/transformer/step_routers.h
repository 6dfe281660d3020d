#pragma once

#include <memory>
#include <vector>

#include "expert_parallel/router_pass.h"
#include "mesh/device_mesh.h"
#include "runtime/training/metrics/step_metrics.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the metrics in `sums`, the sum over all parts and ranks of StepRouters::end_step().
ExpertMetrics expert_metrics(const TransformerOptions& options, const std::vector<double>& sums);

/// The routers of a part of a Transformer in the micro-batches of a step: their balancing losses and counts.
class StepRouters {
 public:
  /// `mesh`: of the ranks that hold the part. Not collective.
  StepRouters(const TransformerOptions& options, const DeviceMesh& mesh, at::Device device);

  /// Call as ModelPart's functions.
  void begin_step(const at::Tensor& scale, int64_t num_micro_batches);
  /// Returns the sum over layers of the mean balancing loss, of the mean z-loss, and how often tokens have chosen each
  /// expert [layers with experts, E]; of this rank's tokens and layers.
  at::Tensor end_step();

  /// Begins the forward of a micro-batch of `num_tokens` tokens on this rank and its tp peers. Returns null outside a
  /// step. End it by RouterPass::end_forward().
  std::shared_ptr<RouterPass> begin_pass(int64_t num_tokens);

 private:
  /// Returns the tokens of `sequences` sequences that the routers of this rank see.
  RouterTokens tokens_of(int64_t sequences) const;

  ModelShape shape_;
  BalancingOptions options_;
  int64_t sequence_length_;
  int64_t length_;         // of this rank's part of a sequence
  int64_t row_parts_ = 1;  // ranks that divide the rows of a micro-batch
  int64_t row_part_ = 0;   // this rank's part
  int64_t data_ranks_;
  bool speaks_;  // false where another rank of tp sees the same tokens
  Group sharers_;
  at::Device device_;
  at::Tensor scale_;  // of the step; undefined outside a step
  int64_t num_micro_batches_ = 0;
  int64_t sequences_ = 0;  // of the step, on all ranks
  std::vector<std::shared_ptr<RouterPass>> passes_;
};

}  // namespace meshtrain
