#pragma once

#include <memory>
#include <vector>

#include "runtime/training/trainer/model_part.h"
#include "runtime/training/transformer/parallelize.h"
#include "runtime/training/transformer/sequences.h"
#include "runtime/training/transformer/step_routers.h"

namespace meshtrain {

/// The sums of TransformerPart::end_step() over all parts and ranks.
struct PartSums {
  std::vector<double> routers = {};   ///< for expert_metrics(); empty without experts
  std::optional<double> z_loss = {};  ///< LogitsZLoss::sum; none where there is no z-loss
};
PartSums part_sums(const TransformerOptions& options, std::vector<double> sums);

/// Consecutive layers of a Transformer as a part of a model.
class TransformerPart final : public ModelPart {
 public:
  /// `replicas`: the maps of the model's Fsdps. `sequences`: makes the Sequence of each micro-batch.
  /// `routers`: of a model with experts; null without. `z_loss`: the coefficient of the logits' z-loss.
  TransformerPart(std::unique_ptr<ShardedModel> model, const ModelReplicas& replicas,
                  std::shared_ptr<const Sequences> sequences, std::unique_ptr<StepRouters> routers = nullptr,
                  double z_loss = 0);

  void begin_step(const at::Tensor& scale, int64_t num_micro_batches) override;
  at::Tensor end_step() override;
  void update(const at::Tensor& sums, const at::Tensor& non_finite) override;
  at::Tensor forward(const at::Tensor& input, const MicroBatch& micro_batch) override;
  at::Tensor make_input(const MicroBatch& micro_batch) const override;
  const std::vector<ParameterGroup>& groups() const override { return groups_; }

  ShardedModel& sharded_model() { return *model_; }
  const ShardedModel& sharded_model() const { return *model_; }
  /// Returns null for a model without experts.
  StepRouters* routers() { return routers_.get(); }
  const SequenceLayout& layout() const { return sequences_->layout(); }

 private:
  std::unique_ptr<ShardedModel> model_;
  std::vector<ParameterGroup> groups_;
  std::shared_ptr<const Sequences> sequences_;
  std::unique_ptr<StepRouters> routers_;
  LogitsZLoss z_loss_;  // with the sum of this step's micro-batches
};

/// Makes the Transformer of `options` in one part, or the parts of `stages`; see parallelize(). `replicas`: the result
/// of map_replicas(). Every rank of `mesh` must call it.
std::vector<std::shared_ptr<TransformerPart>> make_transformer(const TransformerOptions& options,
                                                               const DeviceMesh& mesh, at::Device device,
                                                               const ModelReplicas& replicas,
                                                               const WriteParameter& write,
                                                               const std::vector<Range>& stages = {});

}  // namespace meshtrain
