#include "runtime/optimizer/sgd.h"

#include <ATen/ATen.h>

#include "runtime/optimizer/state.h"

namespace meshtrain {

Sgd::Sgd(const OptimizerRecipe& recipe, const std::vector<Unit>& units) : momentum_(recipe.momentum) {
  for (const FlatBuffer* buffer : trainable_buffers(units)) {
    for (const auto& [range, rule] : update_ranges(*buffer, recipe)) {
      const at::Tensor values = buffer->shard_values().narrow(0, range.offset, range.numel);
      parts_.push_back({values, buffer->shard_gradients().narrow(0, range.offset, range.numel),
                        momentum_ != 0 ? make_state(values) : at::Tensor(), rule});
    }
  }
}

void Sgd::step(double learning_rate) {
  at::NoGradGuard no_grad;
  for (Part& part : parts_) {
    at::Tensor update = part.gradients;
    if (part.rule.weight_decay != 0) update = at::add(update, part.values, part.rule.weight_decay);
    if (momentum_ != 0) update = part.velocity.mul_(momentum_).add_(update);
    part.values.add_(update, -learning_rate * part.rule.rate);
  }
}

}  // namespace meshtrain
