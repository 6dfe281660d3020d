#include "runtime/training/transformer/transformer_trainer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/glob.h"
#include "mesh/base/progress.h"
#include "runtime/training/model/adapter_shape.h"
#include "runtime/training/model/first_weights.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/transformer/stages.h"

namespace meshtrain {
namespace {

/// Returns the initial values of a model's parameters. If `resumes`, those in the checkpoint begin as zeros, because
/// its shards are written later.
WriteParameter first_values(const TrainingOptions& options, bool resumes) {
  if (resumes && std::ranges::count(options.saved_frozen, std::string("*")) > 0) return [](const Parameter&) {};
  ModelShape shape = options.shape;
  if (resumes) shape.adapter.from.clear();  // all that the folder has is in the checkpoint
  const auto weights = std::make_shared<FirstWeights>(options.weights, shape, options.seed);
  const auto progress = options.weights.empty()
                            ? nullptr
                            : std::make_shared<Progress>("weights of " + options.weights.string(), 0, "bytes");
  return [weights, progress, resumes, saved = options.saved_frozen](const Parameter& parameter) {
    if (resumes && (parameter.tensor.requires_grad() || first_match(saved, parameter.name))) return;
    weights->read(parameter);
    if (progress) progress->advance(static_cast<int64_t>(parameter.valid().nbytes()));
  };
}

using Parts = TransformerTrainer::Parts;

Transformer& model_of(const Parts& parts) {
  return parts.front()->sharded_model().model();
}

/// Makes the parts of the model that this rank computes. Throws InputError when every parameter is frozen.
Parts make_parts(const TrainingOptions& options, const PipelineMesh& mesh, at::Device device,
                 const ModelReplicas& replicas, bool resumes) {
  const std::vector<Range> stages = own_layers(options.pipeline, mesh.complete());
  Parts parts = make_transformer(options, mesh.stage(), device, replicas, first_values(options, resumes), stages);
  const auto is_trained = [](const Parameter* parameter) { return parameter->tensor.requires_grad(); };
  if (std::ranges::any_of(model_of(parts).parameters(), is_trained)) return parts;
  throw InputError("train.freeze", "every parameter is frozen: leave one of its patterns out");
}

/// Throws InputError, the same on all ranks of the pipeline, where its ends share a trained embedding whose gradient is
/// on the host.
void check_shared(const TrainingOptions& options, const PipelineMesh& mesh, const Parts& parts) {
  const ModelShape& shape = options.shape;
  if (mesh.links() == nullptr || !shape.tie_word_embeddings) return;
  if (!is_trained(shape.adapter, options.freeze, kEmbedding)) return;
  if (!parts.front()->groups().front().fsdp->is_offloaded()) return;
  throw InputError("parallel.fsdp.offload",
                   "the embedding is also the head, so the first and the last stage of the pipeline sum its gradient, "
                   "which is not possible on the host: offload nothing, or set parallel.fsdp.offload.parameters: "
                   "false");
}

/// Returns the buffers of `part` whose parameters another stage has too.
std::vector<SharedBuffer> shared_buffers(const TransformerPart& part, const PipelineMesh& mesh) {
  std::vector<SharedBuffer> shared;
  const Parameter* const weight = part.sharded_model().shared_weight();
  for (const FlatBuffer* buffer : trainable_buffers(part.groups())) {
    if (buffer->segments().front().parameter != weight) continue;
    if (mesh.ends().size() == 1) throw std::logic_error("the ends of the pipeline share a weight, but are not joined");
    shared.push_back({buffer, mesh.ends()});
  }
  return shared;
}

Pipeline pipeline_of(const TrainingOptions& options, const PipelineMesh& mesh, const Parts& parts) {
  check_shared(options, mesh, parts);
  Pipeline pipeline{.links = mesh.links(), .schedule = options.pipeline.schedule};
  pipeline.first_trained = first_trained_stage(model_of(parts), options.pipeline);
  for (const auto& part : parts) {
    for (SharedBuffer& shared : shared_buffers(*part, mesh)) pipeline.shared.push_back(std::move(shared));
  }
  return pipeline;
}

}  // namespace

TransformerTrainer::TransformerTrainer(const TrainingOptions& options, std::shared_ptr<const PipelineMesh> mesh,
                                       at::Device device, const ModelReplicas& replicas, bool resumes)
    : TransformerTrainer(options, mesh, make_parts(options, *mesh, device, replicas, resumes)) {}

TransformerTrainer::TransformerTrainer(const TrainingOptions& options, const DeviceMesh& mesh, at::Device device,
                                       bool resumes)
    : TransformerTrainer(options, std::make_shared<const PipelineMesh>(mesh, options.shape.tie_word_embeddings), device,
                         resumes) {}

TransformerTrainer::TransformerTrainer(const TrainingOptions& options, std::shared_ptr<const PipelineMesh> mesh,
                                       at::Device device, bool resumes)
    : TransformerTrainer(options, mesh, device, map_replicas(options.sharding, *mesh), resumes) {}

TransformerTrainer::TransformerTrainer(const TrainingOptions& options, std::shared_ptr<const PipelineMesh> mesh,
                                       const Parts& parts)
    : Trainer(ModelParts(parts.begin(), parts.end()), ParameterIndex(model_of(parts).parameters()), mesh->complete(),
              options, make_optimizer, pipeline_of(options, *mesh, parts)),
      options_(options),
      pipeline_mesh_(std::move(mesh)),
      stages_(parts) {}

}  // namespace meshtrain
