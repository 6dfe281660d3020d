#include "runtime/optimizer/sgd.h"

#include <ATen/ATen.h>

namespace meshtrain {

Sgd::Sgd(const OptimizerRecipe& recipe, const std::vector<Unit>& units, std::optional<StochasticRounding> rounding)
    : momentum_(recipe.momentum), rounding_(rounding) {
  for (const Unit& unit : units) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      if (!buffer.trainable()) continue;
      for (const DecayRange& range : decay_ranges(buffer, recipe)) {
        const at::Tensor values = buffer.shard_values().narrow(0, range.offset, range.numel);
        parts_.push_back({values,
                          buffer.shard_gradients().narrow(0, range.offset, range.numel),
                          momentum_ != 0 ? at::zeros_like(values) : at::Tensor(),
                          range.weight_decay,
                          {}});
        if (rounding_) parts_.back().runs = rounding_->runs(buffer, {range.offset, range.numel});
      }
    }
  }
}

void Sgd::step(double learning_rate) {
  at::NoGradGuard no_grad;
  if (rounding_) rounding_->begin_step();
  for (const Part& part : parts_) {
    const auto update = [&](std::vector<at::Tensor> tensors, const at::Tensor& gradients) {
      at::Tensor change = gradients;
      if (part.weight_decay != 0) change = at::add(change, tensors[0], part.weight_decay);
      if (momentum_ != 0) change = tensors[1].mul_(momentum_).add_(change);
      tensors[0].add_(change, -learning_rate);
    };
    std::vector<at::Tensor> tensors = {part.values};
    if (momentum_ != 0) tensors.push_back(part.velocity);
    if (rounding_) {
      rounding_->apply(tensors, part.gradients, part.runs, update);
    } else {
      update(tensors, part.gradients);
    }
  }
}

}  // namespace meshtrain
