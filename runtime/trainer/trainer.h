#pragma once

#include <functional>
#include <memory>
#include <string>

#include "mesh/device_mesh.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/recipe/run_plan.h"
#include "runtime/trainer/batch.h"
#include "runtime/trainer/data_parallel.h"
#include "runtime/trainer/gradient_sums.h"
#include "runtime/trainer/loss_scale.h"
#include "runtime/trainer/ownership.h"
#include "runtime/trainer/parameter_meter.h"
#include "runtime/trainer/sequences.h"
#include "runtime/trainer/sharded_model.h"
#include "runtime/trainer/step_graph.h"
#include "runtime/trainer/step_values.h"

namespace meshtrain {

/// Of tokens that are not trained on; the same on every rank.
struct HeldOutLoss {
  double mean = 0;
  int64_t num_counted = 0;
};

/// The model on its mesh, its optimizer, and the step. The host reads nothing of a step that a device has to compute
/// first, but for sgd and muon, and for the loss scale of the next; it runs on the Meta device too. Every rank
/// constructs the same trainer and calls each function.
class Trainer {
 public:
  /// Declares, cuts and initialises the model that `recipe` asks for; weights of a Hugging Face folder are read in
  /// part, each rank its own. `resumes`: parameters are zero, and no weights are read, as shards() are written next and
  /// resume() is called. Throws InputError. Collective at its beginning, where ranks of a host come to share
  /// memory (Fsdp) and nothing can have failed on one rank alone.
  Trainer(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh, at::Device device, ReplicaMap replicas,
          bool resumes = false);
  /// Resolves `recipe` for the mesh, and makes the map of replicas too, which may be collective.
  Trainer(const Recipe& recipe, const DeviceMesh& mesh, at::Device device)
      : Trainer(recipe, resolve(recipe, mesh.layout()), mesh, device) {}
  Trainer(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh, at::Device device)
      : Trainer(recipe, plan, mesh, device, map_replicas(plan.sharding, mesh)) {}

  /// Makes each later step() run as a graph where it can: not when it measures, and only with samples that are one
  /// document each. On any number of ranks, all of which call this; StepGraph::hindrance() has to be empty. `graph`: of
  /// the trainer's device.
  void use_graph(std::unique_ptr<DeviceGraph> graph);

  /// Makes one update: compute_gradients(), then update().
  StepOutcome step(const StepBatch& batch, int64_t num_counted, const StepRequest& request);

  /// Forward and backward of every micro-batch, sums of gradients, norm: each shard then has the gradient of the mean
  /// loss, neither scaled nor clipped. `num_counted`: counted tokens of the whole step over dp x cp, at least 1.
  StepOutcome compute_gradients(const StepBatch& batch, int64_t num_counted, const StepRequest& request);
  /// Clips them and changes the parameters. When the outcome is not finite nothing is changed but the loss scale: every
  /// rank decides alike, from the vote.
  void update(const StepOutcome& outcome, double learning_rate);

  /// The mean loss over all counted tokens of the micro-batches that every dp rank has `count` of, this one those that
  /// `next` gives: sum of token losses over dp x cp by their number, exactly. Nothing is recorded and nothing changed;
  /// between steps. Throws AgreedError when no label counts.
  HeldOutLoss evaluate(int64_t count, const std::function<MicroBatch()>& next);

  /// The batch's counted tokens, summed over dp x cp. Throws when there are none at all.
  int64_t count_tokens(const StepBatch& batch) const;

  /// "model.layers.3.mlp.up_proj.weight": the first parameter with a gradient that is not finite, in the order of the
  /// units, on any rank; empty when there is none. After a step that was not finite.
  std::string find_non_finite() const;

  /// Of a step that measured them, for metrics.
  std::vector<ParameterMetrics> read_parameters(const StepOutcome& outcome) const {
    return meter_->read(outcome.parameters);
  }

  // What a checkpoint holds of it.

  /// This rank's shards of every parameter, frozen ones too, and the state of the optimizer.
  std::vector<ShardTensor> shards() const;
  /// Who holds and owns what of the model.
  const ReplicaMap& replicas() const { return replicas_; }
  /// Sets what this knows of `state`: updates and loss scale.
  void write(TrainingState& state);
  /// shards() have been written: it goes on as it was then. Between steps, on every rank.
  void resume(const TrainingState& state);

  const SequenceLayout& layout() const { return sequences_.layout(); }
  /// Where this rank's shards and the optimizer's state lie.
  const ShardMemory& shard_memory() const { return shard_memory_; }
  const RunPlan& plan() const { return plan_; }
  ShardedModel& sharded_model() { return *model_; }
  Transformer& model() { return model_->model(); }
  Fsdp& fsdp() { return model_->fsdp(); }
  const Fsdp& fsdp() const { return model_->fsdp(); }

 private:
  StepInputs inputs_of(int64_t num_counted, const StepRequest& request);
  /// compute_gradients() and update() with nothing but tensors: what a step computes, as StepOutcome has it.
  at::Tensor compute_gradients(const StepBatch& batch, const StepInputs& inputs);
  void update(const at::Tensor& grad_norm, const at::Tensor& non_finite, const at::Tensor& learning_rate);
  at::Tensor forward(const MicroBatch& micro_batch);
  at::Tensor backward(const StepBatch& batch, const at::Tensor& start);
  at::Tensor vote(const at::Tensor& loss_sum, const StepInputs& inputs) const;
  at::Tensor clip_factor(const at::Tensor& grad_norm) const;
  void limit_graph() const;
  void multiply_gradients(const at::Tensor& factor);
  /// The scale of the next backward, which may depend on the last step.
  const LossScale& loss_scale();

  const DeviceMesh& mesh_;
  RunPlan plan_;
  TrainRecipe train_;
  at::Device device_;
  Sequences sequences_;
  ReplicaMap replicas_;
  GradientSums sums_;
  ShardMemory shard_memory_;
  std::unique_ptr<ShardedModel> model_;
  std::vector<OwnedRange> owned_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ParameterMeter> meter_;  // once something is measured
  LossScale loss_scale_;
  at::Tensor undecided_;  // whether the last step was not finite, while the loss scale does not know
  // The last: NCCL ends no communicator while a graph holds operations of it.
  std::unique_ptr<StepGraph> graph_;
};

}  // namespace meshtrain
