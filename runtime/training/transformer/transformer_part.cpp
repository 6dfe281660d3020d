#include "runtime/training/transformer/transformer_part.h"

#include <utility>

#include "mesh/device/device_transfer.h"
#include "runtime/training/transformer/data_parallel.h"

namespace meshtrain {

TransformerPart::TransformerPart(std::unique_ptr<ShardedModel> model, const ModelReplicas& replicas,
                                 std::shared_ptr<const Sequences> sequences)
    : model_(std::move(model)), groups_({{&model_->fsdp(), replicas.dense}}), sequences_(std::move(sequences)) {
  if (model_->experts() != nullptr) groups_.push_back({model_->experts(), replicas.experts.value()});
}

at::Tensor TransformerPart::forward(const at::Tensor& input, const MicroBatch& micro_batch) {
  const at::Device device = device_of(groups_);
  const Sequence sequence =
      at::GradMode::is_enabled() ? sequences_->in_training(micro_batch) : sequences_->of(micro_batch.documents);
  return model_->forward(input.defined() ? input : to_device(micro_batch.inputs, device),
                         {sequence, to_device(micro_batch.labels, device)});
}

at::Tensor TransformerPart::make_input(const MicroBatch& micro_batch) const {
  return model_->model().empty_residual(micro_batch.inputs.numel(), device_of(groups_));
}

std::vector<std::shared_ptr<TransformerPart>> make_transformer(const TransformerOptions& options,
                                                               const DeviceMesh& mesh, at::Device device,
                                                               const ModelReplicas& replicas,
                                                               const WriteParameter& write,
                                                               const std::vector<Range>& stages) {
  std::vector<std::unique_ptr<ShardedModel>> models =
      parallelize(options, fsdp_options(options, replicas), mesh, device, write, stages);
  // Call this after the ranks' collective set-up, because it may fail on one rank alone.
  const auto sequences = std::make_shared<const Sequences>(options, mesh, device);
  std::vector<std::shared_ptr<TransformerPart>> parts;
  for (auto& model : models) {
    parts.push_back(std::make_shared<TransformerPart>(std::move(model), replicas, sequences));
  }
  return parts;
}

}  // namespace meshtrain
