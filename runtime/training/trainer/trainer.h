#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "mesh/device_mesh.h"
#include "runtime/training/checkpoint/training_state.h"
#include "runtime/training/optimizer/optimizer.h"
#include "runtime/training/trainer/find_non_finite.h"
#include "runtime/training/trainer/loss_scale.h"
#include "runtime/training/trainer/micro_batch.h"
#include "runtime/training/trainer/model_part.h"
#include "runtime/training/trainer/options.h"
#include "runtime/training/trainer/outliers.h"
#include "runtime/training/trainer/ownership.h"
#include "runtime/training/trainer/parameter_meter.h"
#include "runtime/training/trainer/pipeline.h"
#include "runtime/training/trainer/step_graph.h"
#include "runtime/training/trainer/step_values.h"

namespace meshtrain {

/// A model in parts on its mesh, with its optimizer and the training step. The trainer also runs on the Meta device.
/// Every rank must construct the same trainer and call each function. During a step the host waits for a result of the
/// device only
///   - with sgd and muon,
///   - for the loss scale of the next step,
///   - when shards are offloaded, because the host updates them.
class Trainer {
 public:
  /// `parts`: the parts that this rank computes, at least one, all with the same kind of shard memory. `index`: the
  /// parameters of the complete model, including those of `parts` (index_of()). `make`: makes the optimizer.
  /// `pipeline`: the pipeline whose stages `parts` are. Throws InputError when no optimizer has the name in `options`,
  /// when the optimizer's state is offloaded alone and `make` returns an optimizer that has no Optimizer::pagers(),
  /// when shards are offloaded that stages share, and when a schedule defers weight gradients whose memory is reused
  /// within a step. Not collective. `mesh`, the complete one, must outlive this.
  Trainer(ModelParts parts, ParameterIndex index, const DeviceMesh& mesh, const TrainerOptions& options,
          const OptimizerFactory& make = make_optimizer, Pipeline pipeline = {});
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Lets each later step() run as a graph when possible: a step that measures does not, nor does a step with several
  /// documents in a sample. All ranks must call it, and StepGraph::hindrance() must be empty. `graph`: a graph of the
  /// trainer's device.
  void use_graph(std::unique_ptr<DeviceGraph> graph);

  /// Sets a function that observes the actions of later steps.
  void on_action(OnAction function) { pipeline_.on_action = std::move(function); }

  /// Makes one update: compute_gradients(), then update(). Throws std::invalid_argument when `request` has no learning
  /// rate.
  StepOutcome step(const StepBatch& batch, int64_t num_counted, const StepRequest& request);

  /// Takes the place of step() for a batch of which no token counts: changes nothing, not even the number of updates,
  /// and returns what ranks request, with a loss and a norm that are no numbers.
  StepResult skip(const StepRequest& request) const;

  /// Runs forward and backward of every micro-batch, sums the gradients and computes their norm. Each shard then has
  /// the gradient of the mean loss, neither scaled nor clipped. `num_counted`: counted tokens of the complete step over
  /// dp x cp, at least 1.
  StepOutcome compute_gradients(const StepBatch& batch, int64_t num_counted, const StepRequest& request);
  /// Clips the gradients and changes the parameters. If the outcome is not finite, changes only the loss scale; if it
  /// has outliers, nothing but their record. All ranks decide alike, because the vote gives them the same outcome.
  void update(const StepOutcome& outcome, double learning_rate);

  struct TokenCounts {
    int64_t counted = 0;
    int64_t padding = 0;  ///< StepBatch::num_padding; 0 when padding was not counted
  };
  /// Returns the batch's tokens, summed over dp x cp. A batch of which no token counts has no mean loss: call skip()
  /// instead of step().
  TokenCounts count(const StepBatch& batch) const;
  /// Returns count().counted. Throws AgreedError when it is 0, and when ranks have different numbers of micro-batches,
  /// whose step would never end.
  int64_t count_tokens(const StepBatch& batch) const;

  /// Returns find_non_finite() of the model. Call after a step that was not finite.
  std::string find_non_finite() const { return meshtrain::find_non_finite(index_, groups_, mesh_.world()); }

  /// Returns the parameters' metrics of a step that measured them.
  std::vector<ParameterMetrics> read_parameters(const StepOutcome& outcome) const {
    return meter_->read(outcome.parameters);
  }

  // The trainer's data in a checkpoint.

  /// Returns this rank's shards of every parameter, frozen ones as TrainerOptions::saved_frozen says, and of the
  /// optimizer's state. No copy uses them when this returns.
  std::vector<ShardTensor> shards() const;
  /// Returns when the host may read and change those of shards() that are in its memory.
  void await_copies() const;
  /// Writes the trainer's part of `state`: updates, loss scale and the record of outliers.
  void write(TrainingState& state);
  /// Restores the trainer's part of `state`. Call after shards() were written, between steps, on every rank.
  void resume(const TrainingState& state);

  /// The runs that this trainer belongs to, as rank 0 sees them.
  struct Runs {
    std::set<std::string> ids;      ///< as CheckpointFolder::owners() returns them
    std::filesystem::path resumed;  ///< the checkpoint that was loaded last; empty without one
  };
  /// Returns what the functions of saving.h keep here, so that save() replaces no other run's checkpoints.
  Runs& runs() { return runs_; }

  const DeviceMesh& mesh() const { return mesh_; }
  const ModelParts& parts() const { return parts_; }
  const Pipeline& pipeline() const { return pipeline_; }
  /// Returns the groups of all parts, in the order of the parts.
  const std::vector<ParameterGroup>& groups() const { return groups_; }
  /// Returns all parameters of the model.
  const ParameterIndex& index() const { return index_; }
  /// Returns the memory that all groups share for this rank's shards.
  const ShardMemory& shard_memory() const { return groups_.front().fsdp->shard_memory(); }
  /// Returns the memory that all groups share for the optimizer's state.
  const ShardMemory& state_memory() const { return groups_.front().fsdp->state_memory(); }
  /// Throws as ShardMemory::check_written() does, for shards and state.
  void check_written() const;

  /// Returns true when shards, or the optimizer's state, are copied between a GPU and its host.
  bool copies() const;
  /// Returns the costs of copying shards, gradients and state between a GPU and its host so far.
  CopyCosts copy_costs() const;
  /// Returns Optimizer::paging_bytes().
  int64_t paging_bytes() const { return optimizer_->paging_bytes(); }

 private:
  /// Returns each of `numbers` summed over dp x cp.
  std::vector<int64_t> sums_of(std::vector<int64_t> numbers) const;
  StepInputs inputs_of(int64_t num_counted, const StepRequest& request);
  /// Computes gradients and the values of StepOutcome with tensors alone, so that a graph can record it; make_update()
  /// changes the parameters likewise.
  at::Tensor compute_gradients(const StepBatch& batch, const StepInputs& inputs);
  /// Returns the schedule of a step with so many micro-batches.
  const PipelineSchedule& schedule_of(size_t num_micro_batches);
  void make_update(const StepOutcome& outcome, const at::Tensor& learning_rate);
  /// Sums the gradients of buffers that several stages share.
  void sum_shared() const;
  /// Returns the sums of ModelPart::end_step() over this rank's parts; undefined: none.
  at::Tensor end_parts() const;
  at::Tensor vote(const at::Tensor& loss_sum, const at::Tensor& part_sums, const StepInputs& inputs) const;
  at::Tensor clip_factor(const at::Tensor& grad_norm) const;
  void limit_graph() const;
  void multiply_gradients(const at::Tensor& factor);
  /// Makes the device unscale gradients and compute their squares before they leave for the host.
  void watch_leaving_gradients();
  void check_gradient_memory() const;
  void shards_changed(const ShardChange& change);
  /// Returns when the host may read and change offloaded shards.
  void finish_copies() const;
  /// Returns the ranks over which losses and counts are summed: dp x cp.
  const Group& tokens() const { return groups_.front().replicas.tokens(); }
  /// Returns the scale of the next backward, which may depend on the last step.
  const LossScale& loss_scale();

  ModelParts parts_;
  Pipeline pipeline_;
  std::optional<PipelineSchedule> schedule_;  // of the last step
  std::vector<ParameterGroup> groups_;
  ParameterIndex index_;
  const DeviceMesh& mesh_;
  double clip_norm_;
  bool scales_loss_;
  std::vector<std::string> saved_frozen_;
  at::Device device_;
  std::vector<OwnedRange> owned_;
  std::optional<LeavingSquares> leaving_;  // when shards are offloaded
  at::Tensor unscale_;                     // factor of gradients that leave; undefined: 1
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ParameterMeter> meter_;  // null until a step measures
  LossScale loss_scale_;
  std::optional<Outliers> outliers_;
  Runs runs_;
  std::optional<StepOutcome> undecided_;  // the last step, until it has updated the loss scale
  // Last member, destroyed first: NCCL does not end a communicator while a graph holds its operations.
  std::unique_ptr<StepGraph> graph_;
};

}  // namespace meshtrain
