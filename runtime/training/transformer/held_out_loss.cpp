#include "runtime/training/transformer/held_out_loss.h"

#include <ATen/core/grad_mode.h>

#include "mesh/device/aten.h"
#include "runtime/training/trainer/run_schedule.h"
#include "runtime/training/transformer/batch.h"

namespace meshtrain {

std::optional<HeldOutLoss> held_out_loss(const ModelParts& parts, int64_t count,
                                         const std::function<MicroBatch()>& next, const std::function<bool()>& ends,
                                         const PipelineLinks* links) {
  const at::NoGradGuard no_grad;
  const std::vector<ParameterGroup> groups = groups_of(parts);
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions(device_of(groups)).dtype(at::kDouble));
  at::Tensor num_counted = at::zeros({1}, at::kLong);
  bool has_ended = false;
  for (int64_t i = 0; i < count; ++i) {
    has_ended = ends && ends();
    if (has_ended) break;
    const MicroBatch micro_batch = next();
    loss_sum.add_(run_forward(parts, micro_batch, links));
    num_counted.add_(count_labels(micro_batch));
  }
  for (const ParameterGroup& each : groups) each.fsdp->end_forward();
  if (has_ended) return std::nullopt;
  const Group group = groups.front().replicas.tokens().with_purpose("evaluate");
  group.all_reduce(loss_sum).wait();
  group.all_reduce(num_counted).wait();
  if (links != nullptr) links->ranks().with_purpose("evaluate").broadcast(loss_sum, links->size() - 1).wait();
  const int64_t total = num_counted.item<int64_t>();
  return HeldOutLoss{loss_sum.item<double>() / static_cast<double>(total), total};
}

}  // namespace meshtrain
