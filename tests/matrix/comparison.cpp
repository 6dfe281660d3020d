#include "tests/matrix/comparison.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "runtime/data/dataset.h"

namespace meshtrain::testing {
namespace {

struct Tolerance {
  double value;     // loss, gradient norm, gradients
  double movement;  // weights
};

Tolerance tolerance_of(const std::string& precision) {
  return precision == "fp64" ? Tolerance{1e-10, 1e-10} : Tolerance{1e-5, 1e-3};
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

class Report {
 public:
  void check(const std::string& what, double difference, double bound) {
    if (difference <= bound) return;  // a difference that is not a number fails
    lines_ << what << ": differs by " << difference << ", bound " << bound << "\n";
  }
  std::string text() const { return lines_.str(); }

 private:
  std::ostringstream lines_;
};

void compare_values(Report& report, const std::string& name, const std::vector<double>& values,
                    const std::vector<double>& reference, double tolerance) {
  for (size_t step = 0; step < reference.size(); ++step) {
    report.check(name + " of step " + std::to_string(step + 1), std::abs(values[step] - reference[step]),
                 tolerance * std::abs(reference[step]));
  }
}

std::map<std::string, at::Tensor> copy_parts(Trainer& trainer, bool gradients) {
  std::map<std::string, at::Tensor> parts;
  for (const Parameter* parameter : trainer.model().parameters()) {
    Parameter view = *parameter;
    if (gradients) view.tensor = parameter->tensor.grad();
    parts[parameter->name] = view.valid().detach().to(at::kDouble).clone();
  }
  return parts;
}

Trace run_steps(Trainer& trainer, const Recipe& recipe, const DeviceMesh& mesh) {
  const Dataset dataset(recipe.data, recipe.train.sequence_length, recipe.model.shape.vocab_size, 0);
  Trace trace;
  trace.first_weights = copy_parts(trainer, /*gradients=*/false);
  for (int64_t step = 0; step < recipe.train.steps; ++step) {
    const StepBatch batch = read_step(dataset, recipe, mesh, trainer.layout(), step);
    const StepOutcome outcome =
        trainer.step(batch, trainer.count_tokens(batch), recipe.optimizer.learning_rate, /*stop=*/false);
    trace.losses.push_back(outcome.loss.item<double>());
    trace.grad_norms.push_back(outcome.grad_norm.item<double>());
    if (step == 0) trace.gradients = copy_parts(trainer, /*gradients=*/true);
  }
  trace.last_weights = copy_parts(trainer, /*gradients=*/false);
  return trace;
}

}  // namespace

at::Tensor part(const at::Tensor& whole, const Box& box) {
  at::Tensor view = whole;
  for (size_t dim = 0; dim < box.start.size(); ++dim) {
    view = view.narrow(static_cast<int64_t>(dim), box.start[dim], box.size[dim]);
  }
  return view;
}

DeviceMesh one_rank_mesh() {
  return DeviceMesh(MeshLayout({{"dp", 1}, {"cp", 1}, {"tp", 1}}), Group());
}

Trace train(const Recipe& recipe, const DeviceMesh& mesh) {
  Trainer trainer(recipe, mesh, at::kCPU);
  return run_steps(trainer, recipe, mesh);
}

std::string train_and_compare(const Recipe& recipe, const DeviceMesh& mesh, const Trace& reference) {
  Trainer trainer(recipe, mesh, at::kCPU);
  const Trace trace = run_steps(trainer, recipe, mesh);
  const Tolerance tolerance = tolerance_of(recipe.train.precision);
  Report report;
  compare_values(report, "loss", trace.losses, reference.losses, tolerance.value);
  compare_values(report, "gradient norm", trace.grad_norms, reference.grad_norms, tolerance.value);

  double model_scale = 0;
  for (const auto& [name, gradient] : reference.gradients) model_scale = std::max(model_scale, largest(gradient));
  for (const Parameter* parameter : trainer.model().parameters()) {
    const std::string& name = parameter->name;
    const at::Tensor& whole = reference.gradients.at(name);
    const double scale = largest(whole) < 1e-6 * model_scale ? model_scale : largest(whole);
    report.check("gradient of " + name, largest(trace.gradients.at(name) - part(whole, parameter->box)),
                 tolerance.value * scale);

    const at::Tensor movement = reference.last_weights.at(name) - reference.first_weights.at(name);
    const at::Tensor difference =
        trace.last_weights.at(name) - trace.first_weights.at(name) - part(movement, parameter->box);
    at::Tensor squares = difference.square().sum().reshape({1});
    if (!parameter->sharded_over.empty()) mesh.group(parameter->sharded_over).all_reduce(squares).wait();
    report.check("movement of " + name, std::sqrt(squares.item<double>()),
                 tolerance.movement * movement.norm().item<double>());
  }
  return report.text();
}

}  // namespace meshtrain::testing
