#include "runtime/trainer/gradient_sums.h"

#include <utility>

namespace meshtrain {

GradientSums::GradientSums(Group every, Group partial) : every_(std::move(every)), partial_(std::move(partial)) {}

void GradientSums::issue(const FlatBuffer& buffer) {
  issue(buffer, {0, buffer.partial_numel()}, partial_);
  issue(buffer, {buffer.partial_numel(), buffer.numel() - buffer.partial_numel()}, every_);
}

void GradientSums::issue(const FlatBuffer& buffer, Range range, const Group& group) {
  const Range kept = buffer.in_shard(range);
  if (kept.numel == 0 || group.size() == 1) return;
  at::Tensor gradients = buffer.shard_gradients().narrow(0, kept.offset, kept.numel);
  works_.push_back(group.all_reduce(gradients));
}

void GradientSums::wait() {
  for (const Work& work : works_) work.wait();
  works_.clear();
}

}  // namespace meshtrain
