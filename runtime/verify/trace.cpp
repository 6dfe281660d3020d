#include "runtime/verify/trace.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

namespace meshtrain {
namespace {

/// What is computed from bf16 is not rounded to it.
at::ScalarType movement_dtype(const at::Tensor& weight) {
  return weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// A copy of the parameter's gradient as it was before it was multiplied by `clip`, without padding.
at::Tensor gradient_of(const Parameter& parameter, const at::Tensor& clip) {
  Parameter view = parameter;
  view.tensor = parameter.tensor.grad();
  const at::Tensor gradient = view.valid().detach();
  return gradient.to(movement_dtype(gradient), false, /*copy=*/true, at::MemoryFormat::Contiguous).div_(clip);
}

}  // namespace

const TracedParameter& Trace::at(const std::string& name) const {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const TracedParameter& parameter) { return parameter.name == name; });
  if (found == parameters.end()) throw std::out_of_range("there is no parameter " + name);
  return *found;
}

Trace trace_steps(Trainer& trainer, const std::vector<StepBatch>& batches, double learning_rate) {
  Trace trace;
  trace.cut_axes = trainer.cut_axes();
  trainer.fsdp().visit_shards([&](const Parameter& parameter) {
    const at::Tensor weight = parameter.valid();
    const at::Tensor minus_first = weight.to(movement_dtype(weight), /*non_blocking=*/false, /*copy=*/true).neg_();
    trace.parameters.push_back(
        {parameter.name, parameter.global_shape, parameter.box, parameter.sharded_over, {}, minus_first});
  });
  for (size_t step = 0; step < batches.size(); ++step) {
    const int64_t num_counted = trainer.count_tokens(batches[step]);
    const StepOutcome outcome = trainer.step(batches[step], num_counted, learning_rate, /*stop=*/false);
    trace.losses.push_back(outcome.loss.item<double>());
    trace.grad_norms.push_back(outcome.grad_norm.item<double>());
    if (step > 0) continue;
    auto traced = trace.parameters.begin();
    trainer.fsdp().visit_gradients([&](const Unit& unit) {
      for (const Parameter* parameter : unit.parameters()) {
        if (parameter->tensor.requires_grad()) traced->gradient = gradient_of(*parameter, outcome.clip);
        ++traced;
      }
    });
  }
  auto traced = trace.parameters.begin();
  trainer.fsdp().visit_shards([&](const Parameter& parameter) { (traced++)->movement.add_(parameter.valid()); });
  return trace;
}

at::Tensor part(const at::Tensor& whole, const Box& box) {
  at::Tensor view = whole;
  for (size_t dim = 0; dim < box.start.size(); ++dim) {
    view = view.narrow(static_cast<int64_t>(dim), box.start[dim], box.size[dim]);
  }
  return view;
}

}  // namespace meshtrain
