#include "runtime/optimizer/sgd.h"

#include <ATen/ATen.h>

#include "runtime/optimizer/stream.h"

namespace meshtrain {

Sgd::Sgd(const OptimizerRecipe& recipe, const std::vector<Unit>& units, const ShardMemory& memory)
    : momentum_(recipe.momentum) {
  for (const FlatBuffer* buffer : trainable_buffers(units)) {
    for (const auto& [range, rule] : update_ranges(*buffer, recipe)) {
      const at::Tensor values = buffer->shard_values().narrow(0, range.offset, range.numel);
      parts_.push_back({values, buffer->shard_gradients().narrow(0, range.offset, range.numel),
                        momentum_ != 0 ? memory.zeros(range.numel, values.options()) : at::Tensor(), rule});
    }
  }
}

void Sgd::step(double learning_rate) {
  at::NoGradGuard no_grad;
  stream(parts_, [&](const Part& part) {
    at::Tensor update = part.gradients, values = part.values, velocity = part.velocity;
    if (part.rule.weight_decay != 0) update = at::add(update, part.values, part.rule.weight_decay);
    if (momentum_ != 0) update = velocity.mul_(momentum_).add_(update);
    values.add_(update, -learning_rate * part.rule.rate);
  });
}

}  // namespace meshtrain
