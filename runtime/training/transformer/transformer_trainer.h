#pragma once

#include <memory>

#include "runtime/training/trainer/trainer.h"
#include "runtime/training/transformer/batch.h"
#include "runtime/training/transformer/data_parallel.h"
#include "runtime/training/transformer/transformer_part.h"

namespace meshtrain {

/// The trainer of a Transformer in one part.
class TransformerTrainer : public Trainer {
 public:
  /// Declares, cuts and initialises the model of `options`. Each rank reads only its part of the weights in a Hugging
  /// Face folder. `resumes`: sets the parameters in shards() to zero, because the caller writes these next and calls
  /// resume(); reads only weights that are not in them. Throws InputError. Collective at the beginning, where ranks of
  /// a host set up shared memory (Fsdp), before an error on one rank alone is possible.
  TransformerTrainer(const TrainingOptions& options, const DeviceMesh& mesh, at::Device device,
                     const ReplicaMap& replicas, bool resumes = false);
  /// Makes the map of replicas itself, which may be collective.
  TransformerTrainer(const TrainingOptions& options, const DeviceMesh& mesh, at::Device device)
      : TransformerTrainer(options, mesh, device, map_replicas(options.sharding, mesh)) {}

  const TrainingOptions& options() const { return options_; }
  const SequenceLayout& layout() const { return part_->layout(); }
  ShardedModel& sharded_model() { return part_->sharded_model(); }
  Transformer& model() { return sharded_model().model(); }
  Fsdp& fsdp() const { return *groups().front().fsdp; }
  const ReplicaMap& replicas() const { return groups().front().replicas; }

 private:
  TransformerTrainer(const TrainingOptions& options, const DeviceMesh& mesh, std::shared_ptr<TransformerPart> part);

  TrainingOptions options_;
  std::shared_ptr<TransformerPart> part_;
};

}  // namespace meshtrain
