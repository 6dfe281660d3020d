#include "runtime/verify/trace.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "mesh/half_precision.h"
#include "runtime/telemetry/progress.h"

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

const TracedParameter& Trace::at(const std::string& name) const {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const TracedParameter& parameter) { return parameter.name == name; });
  if (found == parameters.end()) throw std::out_of_range("there is no parameter " + name);
  return *found;
}

Trace trace_steps(TransformerTrainer& trainer, const std::vector<StepBatch>& batches, double learning_rate,
                  const std::string& where) {
  Progress progress("steps on " + where, static_cast<int64_t>(batches.size()), "steps");
  Trace trace;
  trace.cut_axes = trainer.replicas().cut_axes();
  trainer.fsdp().visit_shards([&](const Parameter& parameter) {
    trace.parameters.push_back({parameter.name,
                                parameter.global_shape,
                                parameter.box,
                                parameter.sharded_over,
                                {},
                                wide_copy(parameter).neg_()});
  });
  for (size_t step = 0; step < batches.size(); ++step) {
    const int64_t num_counted = trainer.count_tokens(batches[step]);
    const StepOutcome outcome = trainer.compute_gradients(batches[step], num_counted, {});
    trace.losses.push_back(outcome.loss.item<double>());
    trace.grad_norms.push_back(outcome.grad_norm.item<double>());
    if (step == 0) {
      std::map<std::string, TracedParameter*> traced;
      for (TracedParameter& parameter : trace.parameters) traced[parameter.name] = &parameter;
      trainer.fsdp().visit_gradients(
          [&](const Parameter& parameter) { traced.at(parameter.name)->gradient = wide_copy(parameter); });
    }
    trainer.update(outcome, learning_rate);
    progress.advance();
  }
  auto traced = trace.parameters.begin();
  trainer.fsdp().visit_shards([&](const Parameter& parameter) { (traced++)->movement.add_(parameter.valid().cpu()); });
  return trace;
}

}  // namespace meshtrain
