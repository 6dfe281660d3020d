#include "runtime/training/transformer/transformer_trainer.h"

#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "runtime/training/model/initialize.h"
#include "runtime/training/model/load.h"
#include "runtime/training/model/peft_tensors.h"

namespace meshtrain {
namespace {

/// Returns the initial values of a model's parameters: those of options.weights, and drawn ones for what is not there.
WriteParameter drawn_or_read(const TransformerOptions& options) {
  if (!options.weights.empty()) {
    const auto weights = std::make_shared<PretrainedWeights>(options.weights, options.shape);
    const auto progress = std::make_shared<Progress>("weights of " + options.weights.string(), 0, "bytes");
    return [weights, progress, seed = options.seed](const Parameter& parameter) {
      if (is_adapter(parameter.name)) return initialize(parameter, seed);
      weights->read(parameter);
      progress->advance(static_cast<int64_t>(parameter.valid().nbytes()));
    };
  }
  return [seed = options.seed](const Parameter& parameter) { initialize(parameter, seed); };
}

/// Returns the same, with the adapters of adapter.from. Returns zeros if `resumes`, because a checkpoint's shards are
/// written later.
WriteParameter first_values(const TransformerOptions& options, bool resumes) {
  if (resumes) return [](const Parameter&) {};
  const std::filesystem::path& from = options.shape.adapter.from;
  if (from.empty()) return drawn_or_read(options);
  const auto adapters = std::make_shared<PeftWeights>(from, options.shape);
  return [adapters, others = drawn_or_read(options)](const Parameter& parameter) {
    if (!adapters->read(parameter)) others(parameter);
  };
}

/// Makes the model as one part. Throws InputError when every parameter is frozen.
std::shared_ptr<TransformerPart> make_part(const TransformerOptions& options, const DeviceMesh& mesh, at::Device device,
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
