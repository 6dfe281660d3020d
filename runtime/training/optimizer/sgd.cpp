#include "runtime/training/optimizer/sgd.h"

#include "fsdp/shard_memory.h"
#include "mesh/device/aten.h"

namespace meshtrain {

Sgd::Sgd(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups,
         const std::optional<StochasticRounding>& rounding)
    : Optimizer(groups), momentum_(options.momentum), rounding_(rounding) {
  for (const ParameterGroup& group : groups) {
    for (const FlatBuffer* buffer : trainable_buffers(group.fsdp->units())) {
      for (const auto& [range, rule] : update_ranges(*buffer, options)) {
        const at::Tensor values = buffer->shard_values().narrow(0, range.offset, range.numel);
        parts_.push_back({values, buffer->shard_gradients().narrow(0, range.offset, range.numel),
                          momentum_ != 0 ? zero_state(options, group, values) : at::Tensor(), rule, buffer, range,
                          rounding_ ? rounding_->runs(*buffer, range) : at::Tensor()});
      }
    }
  }
  std::vector<StatePager::State> state;
  for (const Part& part : parts_) state.push_back(part.state());
  pager_ = make_state_pager(groups, state, /*cuts=*/true);
}

void Sgd::update(const UpdateInputs& inputs) {
  if (is_true(inputs.skip)) return;
  const double learning_rate = host_value(inputs.learning_rate);
  const int64_t step = rounding_ ? num_steps() : 0;
  update_parts(parts_, pager_.get(), [&](const Part& part, Range piece, const StatePager::State& state) {
    const at::Tensor own_gradients = part.gradients.narrow(0, piece.offset, piece.numel);
    if (inputs.gradient_factor.defined()) at::Tensor(own_gradients).mul_(inputs.gradient_factor);
    const auto update = [&](std::vector<at::Tensor> tensors, const at::Tensor& gradients) {
      at::Tensor change = gradients;
      if (part.rule.weight_decay != 0) change = at::add(change, tensors[0], part.rule.weight_decay);
      if (momentum_ != 0) change = tensors[1].mul_(momentum_).add_(change);
      tensors[0].add_(change, -learning_rate * part.rule.rate);
    };
    std::vector<at::Tensor> tensors = {part.values.narrow(0, piece.offset, piece.numel)};
    tensors.insert(tensors.end(), state.begin(), state.end());
    apply_update(rounding_, tensors, own_gradients, part.runs, piece.offset, step, update);
  });
}

std::vector<StatePager*> Sgd::pagers() const {
  return pager_ ? std::vector{pager_.get()} : std::vector<StatePager*>();
}

std::vector<ShardTensor> Sgd::state() const {
  std::vector<ShardTensor> state;
  for (const Part& part : parts_) {
    if (part.velocity.defined()) state.push_back({"momentum", part.buffer, part.range, part.velocity});
  }
  return state;
}

}  // namespace meshtrain
