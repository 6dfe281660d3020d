#pragma once

#include <memory>
#include <string>

#include "fsdp/fsdp.h"
#include "mesh/device_mesh.h"
#include "runtime/config/recipe.h"
#include "runtime/model/transformer.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/train/batch.h"
#include "runtime/train/data_parallel.h"
#include "runtime/train/gradient_sums.h"
#include "runtime/train/ownership.h"
#include "runtime/train/parameter_meter.h"
#include "runtime/train/sequences.h"

namespace meshtrain {

/// What all ranks know after a step, still on the device: fp64 scalars, the same on every rank.
struct StepOutcome {
  at::Tensor loss;             ///< mean over the counted tokens of the whole step
  at::Tensor grad_norm;        ///< of the whole model, before clipping
  at::Tensor clip;             ///< what gradients were then multiplied by: 1 when they were not clipped
  at::Tensor stop;             ///< number of ranks that asked to stop
  at::Tensor parameters = {};  ///< for read_parameters(), when they were to be measured
};

/// The model on its mesh, its optimizer, and the step. It reads no values on the host, so the same step runs on the
/// Meta device. Every rank constructs the same trainer and calls each function.
class Trainer {
 public:
  /// Declares, cuts and initialises the model that `recipe` asks for; weights of a Hugging Face folder are read in
  /// part, each rank its own. Throws InputError. Collective at its beginning, where ranks of a host come to share
  /// memory (Fsdp) and nothing can have failed on one rank alone.
  Trainer(const Recipe& recipe, const DeviceMesh& mesh, at::Device device, DataParallel data_parallel);
  /// With make_data_parallel(), which may be collective too.
  Trainer(const Recipe& recipe, const DeviceMesh& mesh, at::Device device)
      : Trainer(recipe, mesh, device, make_data_parallel(recipe, mesh)) {}

  /// One update: forward and backward of every micro-batch, sums of gradients, norm, clip, optimizer. `num_counted`:
  /// counted tokens of the whole step over dp x cp, at least 1. `stop`: this rank asks to stop. `measure`: each
  /// parameter by itself, the same on every rank.
  StepOutcome step(const StepBatch& batch, int64_t num_counted, double learning_rate, bool stop, bool measure = false);

  /// The batch's counted tokens, summed over dp x cp. Throws when there are none at all.
  int64_t count_tokens(const StepBatch& batch) const;

  /// "model.layers.3.mlp.up_proj.weight": the first parameter with a gradient that is not finite, in the order of the
  /// units, on any rank; empty when there is none. After a step; for the message.
  std::string find_non_finite() const;

  /// Of a step that measured them, for metrics.
  std::vector<ParameterMetrics> read_parameters(const StepOutcome& outcome) const {
    return meter_->read(outcome.parameters);
  }

  const SequenceLayout& layout() const { return sequences_.layout(); }
  /// Over whose ranks parameters, gradients or optimizer are cut.
  const std::vector<std::string>& cut_axes() const { return data_parallel_.cut_axes; }
  /// Where this rank's shards and the optimizer's state lie.
  const ShardMemory& shard_memory() const { return shard_memory_; }
  bool sequence_parallel() const { return parallelism_.tensor.sequence_parallel; }
  Transformer& model() { return *model_; }
  Fsdp& fsdp() { return *fsdp_; }

 private:
  at::Tensor backward(const StepBatch& batch, int64_t num_counted);
  at::Tensor vote(const at::Tensor& loss_sum, bool stop) const;
  at::Tensor clip(const at::Tensor& grad_norm);

  const DeviceMesh& mesh_;
  TrainRecipe train_;
  at::Device device_;
  Parallelism parallelism_;
  Sequences sequences_;
  std::unique_ptr<Transformer> model_;
  DataParallel data_parallel_;
  GradientSums sums_;
  ShardMemory shard_memory_;
  std::unique_ptr<Fsdp> fsdp_;
  std::vector<OwnedRange> owned_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ParameterMeter> meter_;  // once something is measured
};

}  // namespace meshtrain
