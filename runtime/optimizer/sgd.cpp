#include "runtime/optimizer/sgd.h"

#include <ATen/ATen.h>

namespace meshtrain {

Sgd::Sgd(const OptimizerRecipe& recipe, const std::vector<Unit>& units) : momentum_(recipe.momentum) {
  for (const Unit& unit : units) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      if (!buffer.trainable()) continue;
      for (const DecayRange& range : decay_ranges(buffer, recipe)) {
        const at::Tensor values = buffer.shard_values().narrow(0, range.offset, range.numel);
        parts_.push_back({values, buffer.shard_gradients().narrow(0, range.offset, range.numel),
                          momentum_ != 0 ? at::zeros_like(values) : at::Tensor(), range.weight_decay});
      }
    }
  }
}

void Sgd::step(double learning_rate) {
  at::NoGradGuard no_grad;
  for (Part& part : parts_) {
    at::Tensor update = part.gradients;
    if (part.weight_decay != 0) update = at::add(update, part.values, part.weight_decay);
    if (momentum_ != 0) update = part.velocity.mul_(momentum_).add_(update);
    part.values.add_(update, -learning_rate);
  }
}

}  // namespace meshtrain
