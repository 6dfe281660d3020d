#include "runtime/program/verify/choices.h"

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

int64_t num_tokens(const TransformerOptions& options, int64_t num_steps) {
  return num_steps * options.batch.global_batch * options.batch.sequence_length;
}

}  // namespace

void use_choices(TransformerTrainer& trainer, const ChoiceUse& use) {
  for (const auto& stage : trainer.stages()) {
    if (stage->routers() != nullptr) stage->routers()->use_choices(use);
  }
}

std::shared_ptr<const RunChoices> recorded_choices(TransformerTrainer& trainer, int64_t num_steps) {
  StepRouters* const routers = trainer.stages().front()->routers();
  if (routers == nullptr) return nullptr;
  return std::make_shared<const RunChoices>(routers->recorded(num_tokens(trainer.options(), num_steps)));
}

std::shared_ptr<const RunChoices> broadcast_choices(const std::shared_ptr<const RunChoices>& choices,
                                                    const TransformerOptions& options, int64_t num_steps,
                                                    const Group& world) {
  const ModelShape& shape = options.shape;
  if (!shape.experts) return nullptr;
  RunChoices all(static_cast<size_t>(shape.num_hidden_layers));
  for (int64_t layer = 0; layer < shape.num_hidden_layers; ++layer) {
    if (!has_experts(shape, layer)) continue;
    at::Tensor& of = all[static_cast<size_t>(layer)];
    of = choices ? choices->at(static_cast<size_t>(layer)).clone()
                 : at::empty({num_tokens(options, num_steps), shape.experts.num_experts_per_tok}, at::kLong);
    world.broadcast(of, 0).wait();
  }
  return std::make_shared<const RunChoices>(std::move(all));
}

ChoiceComparison compare_choices(TransformerTrainer& trainer, bool replayed) {
  if (!trainer.options().shape.experts) return {};
  at::Tensor numbers = at::zeros({2}, at::kLong);
  for (const auto& stage : trainer.stages()) numbers.add_(stage->routers()->changed());
  trainer.mesh().world().with_purpose("verify").all_reduce(numbers).wait();
  return {numbers[0].item<int64_t>(), numbers[1].item<int64_t>(), replayed};
}

}  // namespace meshtrain
