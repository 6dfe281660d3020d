#include "runtime/program/verify/trace.h"

#include <utility>

#include "mesh/base/progress.h"
#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"
#include "mesh/layout.h"

namespace meshtrain {
namespace {

/// Returns a copy without padding in host memory, in fp32 or fp64, so that results computed from halves are not rounded
/// to them.
at::Tensor wide_copy(const Parameter& parameter) {
  const at::Tensor valid = parameter.valid();
  return valid.to(at::kCPU, accumulation_dtype(valid.scalar_type()), /*non_blocking=*/false, /*copy=*/true,
                  at::MemoryFormat::Contiguous);
}

}  // namespace

ParameterTracer::ParameterTracer(const ParameterIndex& index, const std::vector<ParameterGroup>& groups)
    : index_(index), groups_(groups) {
  for (const ParameterIndex::Entry& entry : index.entries()) {
    parameters_.push_back({entry.name, entry.global_shape, {}, {}, {}, entry.trainable});
  }
  for (const ParameterGroup& group : groups) {
    group.fsdp->visit_shards([&](const Parameter& parameter) {
      TracedParameter& traced = parameters_[index.number(parameter.name)];
      traced.box = parameter.box;
      traced.movement = wide_copy(parameter).neg_();
      traced.first_length = traced.movement.norm().item<double>();
      traced.cut_axes.insert(group.replicas.cut_axes().begin(), group.replicas.cut_axes().end());
      if (parameter.sharded_over.empty()) return;
      traced.parts = group.replicas.parts();
      traced.cut_axes.insert(parameter.sharded_over);
      // ep is among dp, cp and tp: ranks along these may hold other experts.
      if (parameter.sharded_over == kExpertAxis) traced.cut_axes.insert({kDataAxis, kContextAxis, kTensorAxis});
    });
  }
}

void ParameterTracer::record_gradients() {
  for (const ParameterGroup& group : groups_) {
    group.fsdp->visit_gradients([&](const Parameter& parameter) {
      parameters_[index_.number(parameter.name)].gradient = wide_copy(parameter);
    });
  }
}

std::vector<TracedParameter> ParameterTracer::finish() {
  for (const ParameterGroup& group : groups_) {
    group.fsdp->visit_shards([&](const Parameter& parameter) {
      parameters_[index_.number(parameter.name)].movement.add_(parameter.valid().cpu());
    });
  }
  return std::move(parameters_);
}

Trace trace_steps(TransformerTrainer& trainer, const std::vector<StepBatch>& batches, double learning_rate,
                  const std::string& where) {
  Progress progress("steps on " + where, static_cast<int64_t>(batches.size()), "steps");
  Trace trace;
  ParameterTracer tracer(trainer.index(), trainer.groups());
  for (size_t step = 0; step < batches.size(); ++step) {
    const int64_t num_counted = trainer.count_tokens(batches[step]);
    const StepOutcome outcome = trainer.compute_gradients(batches[step], num_counted, {});
    trace.losses.push_back(outcome.loss.item<double>());
    trace.grad_norms.push_back(outcome.grad_norm.item<double>());
    if (step == 0) tracer.record_gradients();
    trainer.update(outcome, learning_rate);
    progress.advance();
  }
  trace.parameters = tracer.finish();
  return trace;
}

}  // namespace meshtrain
