#include "runtime/trainer/held_out_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "mesh/device_transfer.h"

namespace meshtrain {

at::Tensor LossModel::loss_sum(const MicroBatch& micro_batch) const {
  const Sequence sequence = sequences.of(micro_batch.documents);
  return model.loss(to_device(micro_batch.ids, device), to_device(micro_batch.labels, device), sequence);
}

std::optional<HeldOutLoss> held_out_loss(const LossModel& of, int64_t count, const std::function<MicroBatch()>& next,
                                         const std::function<bool()>& ends) {
  const at::NoGradGuard no_grad;
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions(of.device).dtype(at::kDouble));
  at::Tensor num_counted = at::zeros({1}, at::kLong);
  bool has_ended = false;
  for (int64_t i = 0; i < count; ++i) {
    has_ended = ends && ends();
    if (has_ended) break;
    const MicroBatch micro_batch = next();
    loss_sum.add_(of.loss_sum(micro_batch));
    num_counted.add_(count_labels(micro_batch));
  }
  of.model.fsdp().end_forward();
  if (has_ended) return std::nullopt;
  const Group group = of.tokens.with_purpose("evaluate");
  group.all_reduce(loss_sum).wait();
  group.all_reduce(num_counted).wait();
  const int64_t total = num_counted.item<int64_t>();
  return HeldOutLoss{loss_sum.item<double>() / static_cast<double>(total), total};
}

}  // namespace meshtrain
