#include "runtime/training/transformer/transformer_part.h"

#include <utility>

#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "runtime/training/transformer/data_parallel.h"

namespace meshtrain {

PartSums part_sums(const TransformerOptions& options, std::vector<double> sums) {
  PartSums parts;
  if (options.z_loss > 0) {
    parts.z_loss = sums.back();
    sums.pop_back();
  }
  parts.routers = std::move(sums);
  return parts;
}

TransformerPart::TransformerPart(std::unique_ptr<ShardedModel> model, const ModelReplicas& replicas,
                                 std::shared_ptr<const Sequences> sequences, std::unique_ptr<StepRouters> routers,
                                 double z_loss)
    : model_(std::move(model)),
      groups_({{&model_->fsdp(), replicas.dense}}),
      sequences_(std::move(sequences)),
      routers_(std::move(routers)) {
  if (model_->experts() != nullptr) groups_.push_back({model_->experts(), replicas.experts.value()});
  if (z_loss > 0) z_loss_ = {z_loss, at::zeros({}, at::TensorOptions(device_of(groups_)).dtype(at::kDouble))};
}

void TransformerPart::begin_step(const at::Tensor& scale, int64_t num_micro_batches) {
  if (routers_) routers_->begin_step(scale, num_micro_batches);
  if (z_loss_.coefficient > 0) z_loss_.sum.zero_();
}

at::Tensor TransformerPart::end_step() {
  const at::Tensor routers = routers_ ? routers_->end_step() : at::Tensor();
  if (z_loss_.coefficient == 0) return routers;
  const bool speaks = groups_.front().replicas.part().tp == 0;  // the ranks of tp have the same sum
  const at::Tensor z_loss = (speaks ? z_loss_.sum : at::zeros_like(z_loss_.sum)).reshape({1});
  return routers.defined() ? at::cat({routers, z_loss}) : z_loss.clone();
}

void TransformerPart::update(const at::Tensor& sums, const at::Tensor& non_finite) {
  if (routers_ && routers_->updates_biases()) routers_->update_biases(model_->fsdp(), sums, non_finite);
}

at::Tensor TransformerPart::forward(const at::Tensor& input, const MicroBatch& micro_batch) {
  const at::Device device = device_of(groups_);
  const bool trains = at::GradMode::is_enabled();
  Sequence sequence = trains ? sequences_->in_training(micro_batch) : sequences_->of(micro_batch.documents);
  if (trains && routers_) sequence.routers = routers_->begin_pass(micro_batch);
  at::Tensor output = model_->forward(input.defined() ? input : to_device(micro_batch.inputs, device),
                                      {.sequence = sequence,
                                       .labels = to_device(micro_batch.labels, device),
                                       .z_loss = trains ? z_loss_ : LogitsZLoss()});
  if (sequence.routers) sequence.routers->end_forward();
  return output;
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
    auto routers = options.shape.experts ? std::make_unique<StepRouters>(options, mesh, device) : nullptr;
    parts.push_back(
        std::make_shared<TransformerPart>(std::move(model), replicas, sequences, std::move(routers), options.z_loss));
  }
  return parts;
}

}  // namespace meshtrain
