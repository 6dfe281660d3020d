#include "runtime/trainer/trainer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <memory>

#include "mesh/agree.h"
#include "mesh/device_transfer.h"
#include "mesh/error.h"
#include "mesh/flight_recorder.h"
#include "runtime/model/initialize.h"
#include "runtime/model/load.h"
#include "runtime/telemetry/progress.h"
#include "runtime/trainer/parallelize.h"

namespace meshtrain {
namespace {

/// Returns the initial values of a model's parameters: zeros if `resumes`, because a checkpoint's shards are written
/// later.
WriteParameter first_values(const TrainerOptions& options, bool resumes) {
  if (resumes) return [](const Parameter&) {};
  if (!options.weights.empty()) {
    const auto weights = std::make_shared<PretrainedWeights>(options.weights, options.shape);
    const auto progress = std::make_shared<Progress>("weights of " + options.weights.string(), 0, "bytes");
    return [weights, progress](const Parameter& parameter) {
      weights->read(parameter);
      progress->advance(static_cast<int64_t>(parameter.valid().nbytes()));
    };
  }
  return [seed = options.seed](const Parameter& parameter) { initialize(parameter, seed); };
}

}  // namespace

Trainer::Trainer(const TrainerOptions& options, const DeviceMesh& mesh, at::Device device, ReplicaMap replicas,
                 bool resumes)
    : mesh_(mesh), options_(options), device_(device), replicas_(std::move(replicas)) {
  FsdpOptions over_ranks = fsdp_options(options, replicas_);
  if (options.offload == Offload::Disk && device.is_cpu()) {
    shard_memory_ = ShardMemory::on_disk(options.offload_folder);
  }
  over_ranks.memory = shard_memory_;
  model_ = parallelize(options, std::move(over_ranks), mesh, device, first_values(options, resumes));
  sequences_.emplace(options, mesh, device);  // behind what ranks set up together: it may fail on one rank alone
  if (trainable_buffers(fsdp().units()).empty()) {
    throw InputError("train.freeze", "every parameter is frozen: leave one of its patterns out");
  }

  trains_padding_ = options.shape.pad_token_id && !options.frozen_row;
  groups_ = {{&fsdp(), replicas_}};
  index_ = ParameterIndex(model().parameters());
  owned_ = owned_ranges(groups_);
  std::optional<StochasticRounding> rounding;
  if (options.precision.stochastic_rounding) rounding.emplace(options.seed);
  optimizer_ = make_optimizer(options.optimizer, groups_, rounding);
  if (options.precision.loss_scale) loss_scale_ = LossScale(*options.precision.loss_scale);
}

Trainer::TokenCounts Trainer::count(const StepBatch& batch) const {
  std::vector<int64_t> numbers = {batch.num_counted};
  if (trains_padding_) numbers.push_back(batch.num_padding);
  at::Tensor sums = at::tensor(numbers, at::kLong);
  replicas_.tokens().with_purpose("count").all_reduce(sums).wait();
  return {sums[0].item<int64_t>(), trains_padding_ ? sums[1].item<int64_t>() : 0};
}

int64_t Trainer::count_tokens(const StepBatch& batch) const {
  const int64_t counted = count(batch).counted;
  if (counted > 0) return counted;
  throw AgreedError(
      "no label of this step counts: data.ignore_id, data.loss_mask or data.boundary_labels ignores every one");
}

StepResult Trainer::skip(const StepRequest& request) const {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  FlightRecorder::own().set_place("vote");
  at::Tensor votes = to_device(at::tensor({request.stop ? 1.0 : 0.0, request.saved ? 1.0 : 0.0}, at::kDouble), device_);
  mesh_.world().with_purpose("vote").all_reduce(votes).wait();
  votes = votes.cpu();
  return {.loss = kNone, .grad_norm = kNone, .num_stop = votes[0].item<double>(), .num_saved = votes[1].item<double>()};
}

void Trainer::use_graph(std::unique_ptr<DeviceGraph> graph) {
  graph_ = std::make_unique<StepGraph>(std::move(graph), [this](const StepBatch& batch, const StepInputs& inputs) {
    const StepOutcome outcome(compute_gradients(batch, inputs));
    update(outcome.grad_norm, outcome.non_finite, inputs.learning_rate);
    return outcome.values;
  });
}

StepOutcome Trainer::step(const StepBatch& batch, int64_t num_counted, const StepRequest& request) {
  const bool measure = request.measure;
  const StepInputs inputs = inputs_of(num_counted, request);
  const bool as_graph = graph_ && !measure && StepGraph::takes(batch);
  StepOutcome outcome(as_graph ? graph_->run(batch, inputs) : compute_gradients(batch, inputs));
  outcome.loss_scale = loss_scale_.value();
  if (measure && !meter_) meter_ = std::make_unique<ParameterMeter>(index_, groups_, mesh_.world());
  if (measure) meter_->before_update();
  if (!as_graph) {
    const ComputeTimer timer;
    update(outcome.grad_norm, outcome.non_finite, inputs.learning_rate);
    if (device_.is_cpu()) outcome.optimizer_seconds = timer.seconds();
  }
  if (graph_ && !measure) limit_graph();  // on all ranks: samples of some may have documents, which no graph takes
  if (measure) outcome.parameters = meter_->after_update();
  fsdp().shards_changed({.rounded = optimizer_->rounds()});
  undecided_ = outcome;
  return outcome;
}

StepOutcome Trainer::compute_gradients(const StepBatch& batch, int64_t num_counted, const StepRequest& request) {
  StepOutcome outcome(compute_gradients(batch, inputs_of(num_counted, request)));
  outcome.loss_scale = loss_scale_.value();
  return outcome;
}

void Trainer::update(const StepOutcome& outcome, double learning_rate) {
  update(outcome.grad_norm, outcome.non_finite, at::full_like(outcome.grad_norm, learning_rate));
  fsdp().shards_changed({.rounded = optimizer_->rounds()});
  undecided_ = outcome;
}

const LossScale& Trainer::loss_scale() {
  if (undecided_ && loss_scale_.changes()) loss_scale_.update(/*finite=*/!undecided_->read().non_finite);
  undecided_.reset();
  return loss_scale_;
}

StepInputs Trainer::inputs_of(int64_t num_counted, const StepRequest& request) {
  return make_step_inputs(num_counted, loss_scale().value(), request, device_);
}

at::Tensor Trainer::compute_gradients(const StepBatch& batch, const StepInputs& inputs) {
  fsdp().begin_step();
  const at::Tensor loss_sum = backward(batch, inputs.loss_scale / inputs.num_counted);
  if (options_.precision.loss_scale) multiply_gradients(inputs.loss_scale.reciprocal());
  const at::Tensor votes = vote(loss_sum, inputs);
  const at::Tensor loss = votes[0] / inputs.num_counted, grad_norm = votes[1].sqrt(), both = loss + grad_norm;
  const at::Tensor non_finite = both.sub(both).ne(0).to(at::kDouble);  // infinite minus infinite is not a number
  return at::stack({loss, grad_norm, non_finite, votes[2], votes[3], loss_sum});
}

// Ends the step with an all-reduce that has a timeout: communication inside a graph has none.
void Trainer::limit_graph() const {
  at::Tensor after = at::zeros({1}, device_);
  mesh_.world().with_purpose("graph").all_reduce(after).wait();
}

void Trainer::update(const at::Tensor& grad_norm, const at::Tensor& non_finite, const at::Tensor& learning_rate) {
  FlightRecorder::own().set_place("optimizer");
  optimizer_->step({learning_rate, clip_factor(grad_norm), non_finite.to(at::kBool)});
}

// The loss of each micro-batch is a sum, and its backward starts from scale / (counted tokens of the step), `start`. So
// gradients of micro-batches and ranks add up to the gradient of the mean, times the scale.
at::Tensor Trainer::backward(const StepBatch& batch, const at::Tensor& start) {
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions(device_).dtype(at::kDouble));
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    const at::Tensor loss = loss_model().loss_sum(batch.micro_batches[i]);
    fsdp().begin_backward(/*last=*/i + 1 == batch.micro_batches.size());
    torch::autograd::backward({loss}, {start.to(loss.scalar_type())});
    fsdp().end_backward();
    loss_sum.add_(loss.detach());
  }
  return loss_sum;
}

// One small all-reduce makes the numbers of this step known to all ranks: the loss sum (tp peers have the same sum, so
// only the first of them adds it), squares of the owned gradients, stop requests, and durable parts of a checkpoint.
at::Tensor Trainer::vote(const at::Tensor& loss_sum, const StepInputs& inputs) const {
  FlightRecorder::own().set_place("norm and vote");
  const bool speaks = replicas_.part().tp == 0;
  at::Tensor votes = at::stack(
      {speaks ? loss_sum : at::zeros_like(loss_sum), owned_squares(owned_, device_), inputs.stop, inputs.saved});
  mesh_.world().with_purpose("vote").all_reduce(votes).wait();
  return votes;
}

// Returns min(1, c / (norm + 1e-6)); undefined when gradients are not clipped.
at::Tensor Trainer::clip_factor(const at::Tensor& grad_norm) const {
  if (options_.clip_norm == 0) return {};
  return grad_norm.add(1e-6).reciprocal_().mul_(options_.clip_norm).clamp_max_(1);
}

void Trainer::multiply_gradients(const at::Tensor& factor) {
  for (const FlatBuffer* buffer : trainable_buffers(fsdp().units())) {
    at::Tensor(buffer->shard_gradients()).mul_(factor);
    set_aside(buffer->shard_gradients());
  }
}

std::vector<ShardTensor> Trainer::shards() const {
  std::vector<ShardTensor> shards;
  for (const Unit& unit : fsdp().units()) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      shards.push_back({"", &buffer, {0, buffer.shard().numel}, buffer.shard_values()});
    }
  }
  const std::vector<ShardTensor> state = optimizer_->state();
  shards.insert(shards.end(), state.begin(), state.end());
  return shards;
}

void Trainer::write(TrainingState& state) {
  state.num_updates = optimizer_->num_steps();
  state.loss_scale = loss_scale().state();
}

void Trainer::resume(const TrainingState& state) {
  optimizer_->resume(state.num_updates);
  undecided_.reset();
  if (state.loss_scale) loss_scale_.resume(*state.loss_scale);
  fsdp().shards_changed({.frozen = true});
}

}  // namespace meshtrain
