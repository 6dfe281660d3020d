#pragma once

#include <memory>

#include "runtime/training/trainer/trainer.h"
#include "runtime/training/transformer/batch.h"
#include "runtime/training/transformer/data_parallel.h"
#include "runtime/training/transformer/transformer_part.h"

namespace meshtrain {

/// The trainer of a Transformer, in one part or in the stages of a pipeline.
class TransformerTrainer : public Trainer {
 public:
  using Parts = std::vector<std::shared_ptr<TransformerPart>>;

  /// Declares, cuts and initialises the model of `options`. Each rank reads only its part of the weights in a Hugging
  /// Face folder. `resumes`: sets the parameters in shards() to zero, because the caller writes these next and calls
  /// resume(); reads only weights that are not in them. Throws InputError. Collective at the beginning, where ranks of
  /// a host set up shared memory (Fsdp), before an error on one rank alone is possible.
  TransformerTrainer(const TrainingOptions& options, std::shared_ptr<const PipelineMesh> mesh, at::Device device,
                     const ModelReplicas& replicas, bool resumes = false);
  /// Makes the mesh of pipelines and the map of replicas itself, which is collective.
  TransformerTrainer(const TrainingOptions& options, const DeviceMesh& mesh, at::Device device, bool resumes = false);

  const TrainingOptions& options() const { return options_; }
  const SequenceLayout& layout() const { return stages_.front()->layout(); }
  /// Returns the complete model; this rank computes the layers of its parts.
  Transformer& model() { return stages_.front()->sharded_model().model(); }
  /// Returns this rank's stages; one part without a pipeline.
  const Parts& stages() const { return stages_; }
  /// Returns the part of a rank that has one.
  ShardedModel& sharded_model() { return stages_.front()->sharded_model(); }
  Fsdp& fsdp() const { return *groups().front().fsdp; }
  const ReplicaMap& replicas() const { return groups().front().replicas; }

 private:
  TransformerTrainer(const TrainingOptions& options, std::shared_ptr<const PipelineMesh> mesh, at::Device device,
                     bool resumes);
  TransformerTrainer(const TrainingOptions& options, std::shared_ptr<const PipelineMesh> mesh, const Parts& parts);

  TrainingOptions options_;
  std::shared_ptr<const PipelineMesh> pipeline_mesh_;
  Parts stages_;
};

}  // namespace meshtrain
