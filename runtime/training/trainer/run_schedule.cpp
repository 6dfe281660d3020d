#include "runtime/training/trainer/run_schedule.h"

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

at::Tensor run_schedule(const PipelineSchedule& schedule, const ModelParts& parts, const StepBatch& batch,
                        const at::Tensor& start) {
  std::map<std::pair<size_t, size_t>, Pass> passes;  // by part and micro-batch
  at::Tensor loss_sum = at::zeros({}, start.options().dtype(at::kDouble));
  for (const PipelineAction& action : schedule.rows.at(0)) {
    const size_t index = static_cast<size_t>(action.stage), i = static_cast<size_t>(action.micro_batch);
    ModelPart& part = *parts[index];
    if (action.kind == PipelineAction::Kind::Forward) {
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
    run_backward(part, pass, /*reduces=*/action.micro_batch + 1 == schedule.micro_batches);
    if (is_loss) loss_sum.add_(pass.output.detach());
    if (index > 0) passes.at({index - 1, i}).gradient = pass.input.grad();
  }
  return loss_sum;
}

}  // namespace meshtrain
