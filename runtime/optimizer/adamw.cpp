#include "runtime/optimizer/adamw.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "runtime/optimizer/stream.h"

namespace meshtrain {

AdamW::AdamW(const OptimizerRecipe& recipe, const std::vector<Unit>& units, const OptimizerOptions& options)
    : recipe_(recipe), rounding_(options.rounding) {
  for (const FlatBuffer* buffer : trainable_buffers(units)) {
    for (const auto& [range, rule] : update_ranges(*buffer, recipe)) {
      if (rule.whole_matrix) continue;
      const at::Tensor values = buffer->shard_values().narrow(0, range.offset, range.numel);
      parts_.push_back({values, buffer->shard_gradients().narrow(0, range.offset, range.numel),
                        options.memory.zeros(range.numel, values.options()),
                        options.memory.zeros(range.numel, values.options()), rule, buffer, range,
                        rounding_ ? rounding_->runs(*buffer, range) : std::vector<ElementRun>{}});
    }
  }
  if (!parts_.empty()) count_ = at::zeros({}, parts_.front().values.options().dtype(at::kFloat));
}

void AdamW::step(double learning_rate) {
  ++num_steps_;
  if (parts_.empty()) return;
  at::NoGradGuard no_grad;
  count_.fill_(num_steps_);
  stream(parts_, [&](const Part& part) {
    const auto update = [&](const std::vector<at::Tensor>& tensors, const at::Tensor& gradients) {
      at::_fused_adamw_(tensors[0], gradients, tensors[1], tensors[2], /*max_exp_avg_sqs=*/{}, count_,
                        learning_rate * part.rule.rate, recipe_.betas[0], recipe_.betas[1], part.rule.weight_decay,
                        recipe_.eps, /*amsgrad=*/false, /*maximize=*/false);
    };
    apply_update(rounding_, {part.values, part.first_moment, part.second_moment}, part.gradients, part.runs, num_steps_,
                 update);
  });
}

std::vector<ShardTensor> AdamW::state() const {
  std::vector<ShardTensor> state;
  for (const Part& part : parts_) {
    state.push_back({"exp_avg", part.buffer, part.range, part.first_moment});
    state.push_back({"exp_avg_sq", part.buffer, part.range, part.second_moment});
  }
  return state;
}

namespace {

// LibTorch has no Meta kernel for the fused update: in a dry run there is nothing to compute and nothing to allocate.
void fused_adamw_meta(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                      double, double, double, double, double, bool, bool, const std::optional<at::Tensor>&,
                      const std::optional<at::Tensor>&) {}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_fused_adamw_", fused_adamw_meta);
}

}  // namespace
}  // namespace meshtrain
