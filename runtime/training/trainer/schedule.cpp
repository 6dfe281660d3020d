#include "runtime/training/trainer/schedule.h"

#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <utility>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// A part's forward for a micro-batch, kept until its backward.
struct Pass {
  at::Tensor input, output;
  at::Tensor gradient = {};  // of the output
};

/// Runs the backward of `pass`. Computes no gradients for an output that depends on no trained parameter.
void run_backward(const ModelPart& part, const Pass& pass, bool reduces) {
  const auto leave = c10::make_scope_exit([&] {
    for (const ParameterGroup& group : part.groups()) group.fsdp->leave_backward();
  });
  for (const ParameterGroup& group : part.groups()) group.fsdp->begin_backward(/*last=*/reduces);
  if (pass.output.requires_grad()) torch::autograd::backward({pass.output}, {pass.gradient});
  for (const ParameterGroup& group : part.groups()) group.fsdp->end_backward();
}

}  // namespace

std::vector<Action> one_after_another(size_t num_parts, size_t num_micro_batches) {
  std::vector<Action> schedule;
  for (size_t i = 0; i < num_micro_batches; ++i) {
    for (size_t part = 0; part < num_parts; ++part) schedule.push_back({Action::Kind::Forward, part, i});
    for (size_t part = num_parts; part-- > 0;) {
      schedule.push_back({Action::Kind::Backward, part, i, /*reduces=*/i + 1 == num_micro_batches});
    }
  }
  return schedule;
}

at::Tensor run_schedule(const std::vector<Action>& schedule, const ModelParts& parts, const StepBatch& batch,
                        const at::Tensor& start) {
  std::map<std::pair<size_t, size_t>, Pass> passes;  // by part and micro-batch
  at::Tensor loss_sum = at::zeros({}, start.options().dtype(at::kDouble));
  for (const Action& action : schedule) {
    const auto [kind, index, i, reduces] = action;
    ModelPart& part = *parts[index];
    if (kind == Action::Kind::Forward) {
      at::Tensor input;
      if (index > 0) {
        const at::Tensor& before = passes.at({index - 1, i}).output;
        input = before.detach().set_requires_grad(before.requires_grad());
      }
      passes[{index, i}] = {input, part.forward(input, batch.micro_batches[i])};
      continue;
    }
    Pass pass = std::move(passes.extract({index, i}).mapped());
    const bool is_loss = index + 1 == parts.size();
    if (is_loss) pass.gradient = start.to(pass.output.scalar_type());
    run_backward(part, pass, reduces);
    if (is_loss) loss_sum.add_(pass.output.detach());
    if (index > 0) passes.at({index - 1, i}).gradient = pass.input.grad();
  }
  return loss_sum;
}

}  // namespace meshtrain
