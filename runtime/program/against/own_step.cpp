#include "runtime/program/against/own_step.h"

#include <cmath>
#include <utility>

#include "mesh/base/available_memory.h"
#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "mesh/device/aten.h"
#include "mesh/device_mesh.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/transformer/transformer_trainer.h"

namespace meshtrain {
namespace {

constexpr size_t kMostParts = 16;

Recipe recipe_of(const StepDump& dump, const std::string& precision) {
  Recipe recipe;
  recipe.model.hf = dump.weights();
  recipe.model.init = "pretrained";
  recipe.model.shape = dump.shape();
  recipe.device = "cpu";
  recipe.train.precision = precision;
  recipe.train.clip_norm = 0;
  recipe.train.sequence_length = dump.inputs().size(1);
  recipe.train.global_batch = 1;
  recipe.train.micro_batch = 1;
  recipe.train.steps = 1;
  recipe.optimizer.name = "sgd";  // has no state
  recipe.optimizer.learning_rate = 1;
  return recipe;
}

/// Returns the samples of each part.
std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> samples_by_part(const StepDump& dump, bool apart) {
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> parts;
  for (int64_t i = 0; i < dump.inputs().size(0); ++i) {
    const auto index = static_cast<size_t>(i);
    const std::pair<int64_t, int64_t> part(dump.ranks()[index], dump.micro_batches()[index]);
    parts[apart ? part : std::pair<int64_t, int64_t>()].push_back(i);
  }
  return parts;
}

StepBatch batch_of(const StepDump& dump, const StepReading& reading, const std::vector<int64_t>& samples) {
  StepBatch batch;
  for (const int64_t sample : samples) {
    MicroBatch micro{.inputs = dump.inputs()[sample].contiguous(), .labels = reading.labels[sample].contiguous()};
    if (!reading.documents.empty()) micro.documents = {reading.documents[static_cast<size_t>(sample)]};
    if (reading.positions.defined()) micro.positions = reading.positions.narrow(0, sample, 1);
    batch.num_counted += count_labels(micro);
    batch.micro_batches.push_back(std::move(micro));
  }
  return batch;
}

/// Returns true when this machine has the memory for weights, gradients, and the gradients of so many parts that the
/// dump covers; where it lacks some, also for the sums of all.
bool fits(const StepDump& dump, const std::string& precision, int64_t num_parts) {
  const at::ScalarType dtype = precision == "fp64" ? at::kDouble : at::kFloat;
  const std::vector<TensorEntry> tensors = declared_tensors(dump.shape(), dtype);
  int64_t part = 0;
  for (const TensorEntry& tensor : tensors) part += dump.num_elements(tensor.name, tensor.shape);
  part *= static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t num_complete = dump.is_complete() || num_parts == 1 ? 3 : 4;
  return num_parts * part + num_complete * total_bytes(tensors) < available_host_memory();
}

/// Returns the length of a gradient of the mean loss, from that of the sum of the losses.
double mean_length(const at::Tensor& sum, int64_t num_counted) {
  const at::Tensor length = at::linalg_vector_norm(sum, 2, at::OptionalIntArrayRef(), false, at::kDouble);
  return length.item<double>() / static_cast<double>(num_counted);
}

}  // namespace

int64_t OwnStep::num_counted() const {
  int64_t sum = 0;
  for (const BatchPart& part : parts) sum += part.num_counted;
  return sum;
}

double OwnStep::loss() const {
  double sum = 0;
  for (const BatchPart& part : parts) sum += part.loss_sum;
  return sum / static_cast<double>(num_counted());
}

double OwnStep::norm() const {
  double squares = 0;
  for (const auto& [name, length] : lengths) squares += length * length;
  return std::sqrt(squares);
}

at::Tensor OwnStep::gradient(const std::string& name) const {
  at::Tensor sum = at::zeros_like(parts.front().gradients.at(name), at::kDouble);
  for (const BatchPart& part : parts) sum.add_(part.gradients.at(name));
  return sum.div_(static_cast<double>(num_counted()));
}

StepReading reading_of(const StepDump& dump) {
  return {dump.labels(), dump.documents()};
}

OwnStep compute_step(const StepDump& dump, const StepReading& reading, const std::string& precision, bool apart) {
  auto by_part = samples_by_part(dump, apart);
  if (by_part.size() > kMostParts || !fits(dump, precision, static_cast<int64_t>(by_part.size()))) {
    by_part = samples_by_part(dump, false);
  }
  const DeviceMesh alone(MeshLayout::fit({}, training_axes(), 1), Group());
  TrainingOptions options = resolve(recipe_of(dump, precision), alone.layout());
  options.has_documents = !reading.documents.empty() || reading.positions.defined();
  TransformerTrainer trainer(options, alone, at::kCPU);
  OwnStep step;
  for (const ParameterIndex::Entry& entry : trainer.index().entries()) {
    if (dump.covers(entry.name)) step.names.push_back(entry.name);
    step.shapes[entry.name] = entry.global_shape;
  }
  std::map<std::string, at::Tensor> others;  // gradients that the dump lacks in part, summed over the parts
  Progress progress("the step on one rank", static_cast<int64_t>(by_part.size()), "parts");
  for (const auto& [part, samples] : by_part) {
    const StepBatch batch = batch_of(dump, reading, samples);
    progress.advance();
    if (batch.num_counted == 0) continue;
    const StepOutcome outcome = trainer.compute_gradients(batch, batch.num_counted, {});
    const auto counted = static_cast<double>(batch.num_counted);
    BatchPart own{part.first, part.second, batch.num_counted, outcome.loss.item<double>() * counted};
    trainer.fsdp().visit_gradients([&](const Parameter& parameter) {
      const at::Tensor values = parameter.valid();
      const at::ScalarType dtype = values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      const at::Tensor sum = values.to(dtype, /*non_blocking=*/false, /*copy=*/true).mul_(counted);
      if (dump.covers(parameter.name)) {
        const at::Tensor dumped = own.gradients[parameter.name] = dump.elements(parameter.name, sum);
        if (dumped.numel() == sum.numel()) return;
      }
      if (by_part.size() == 1) {
        step.lengths[parameter.name] = mean_length(sum, batch.num_counted);
      } else {
        at::Tensor& other = others[parameter.name];
        other = other.defined() ? other.add_(sum) : sum;
      }
    });
    step.parts.push_back(std::move(own));
  }
  if (step.parts.empty()) throw InputError(dump.folder().string() + ": no label of the step counts");
  for (const auto& [name, sum] : others) step.lengths[name] = mean_length(sum, step.num_counted());
  for (const std::string& name : step.names) {
    if (!step.lengths.contains(name)) step.lengths[name] = mean_length(step.gradient(name), 1);
  }
  return step;
}

}  // namespace meshtrain
