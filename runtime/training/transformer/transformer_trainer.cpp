#include "runtime/training/transformer/transformer_trainer.h"

#include <algorithm>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/glob.h"
#include "mesh/base/progress.h"
#include "runtime/training/model/first_weights.h"

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

/// Makes the model as one part. Throws InputError when every parameter is frozen.
std::shared_ptr<TransformerPart> make_part(const TrainingOptions& options, const DeviceMesh& mesh, at::Device device,
                                           const ReplicaMap& replicas, bool resumes) {
  auto part = make_transformer(options, mesh, device, replicas, first_values(options, resumes)).front();
  if (!trainable_buffers(part->groups()).empty()) return part;
  throw InputError("train.freeze", "every parameter is frozen: leave one of its patterns out");
}

}  // namespace

TransformerTrainer::TransformerTrainer(const TrainingOptions& options, const DeviceMesh& mesh, at::Device device,
                                       const ReplicaMap& replicas, bool resumes)
    : TransformerTrainer(options, mesh, make_part(options, mesh, device, replicas, resumes)) {}

TransformerTrainer::TransformerTrainer(const TrainingOptions& options, const DeviceMesh& mesh,
                                       std::shared_ptr<TransformerPart> part)
    : Trainer({part}, ParameterIndex(part->sharded_model().model().parameters()), mesh, options),
      options_(options),
      part_(std::move(part)) {}

}  // namespace meshtrain
