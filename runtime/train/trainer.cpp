#include "runtime/train/trainer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "mesh/agree.h"
#include "mesh/error.h"
#include "runtime/config/patterns.h"
#include "runtime/model/initialize.h"
#include "runtime/model/load.h"
#include "runtime/train/assemble.h"

namespace meshtrain {
namespace {

/// Parameters whose names a pattern matches are not trained.
void freeze(Transformer& model, const std::vector<std::string>& patterns) {
  bool trains = false;
  for (Parameter* parameter : model.parameters()) {
    if (first_match(patterns, parameter->name)) parameter->tensor.set_requires_grad(false);
    trains = trains || parameter->tensor.requires_grad();
  }
  if (!trains) throw InputError("train.freeze: every parameter is frozen: leave one of its patterns out");
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const DeviceMesh& mesh, at::Device device, DataParallel data_parallel,
                 bool resumes)
    : mesh_(mesh),
      train_(recipe.train),
      device_(device),
      sequences_(recipe, mesh, device),
      data_parallel_(std::move(data_parallel)),
      sums_(data_parallel_.sums, data_parallel_.partial_sums) {
  parallelism_ = make_parallelism(recipe, mesh, sequences_.layout());
  const at::TensorOptions options = at::TensorOptions(device).dtype(dtype_of(recipe.train.precision));
  model_ = std::make_unique<Transformer>(recipe.model.shape, parallelism_, options,
                                         make_recomputation(recipe.train.activation_checkpointing),
                                         recipe.parallel.fsdp.unit_layers);
  freeze(*model_, recipe.train.freeze);
  FsdpOptions options_of_units = data_parallel_.options;
  if (recipe.parallel.fsdp.offload.to == "disk" && device.is_cpu()) {
    options_of_units.memory = ShardMemory::on_disk(recipe.parallel.fsdp.offload.path);
  }
  options_of_units.on_reduced = [this](const FlatBuffer& buffer) { sums_.issue(buffer); };
  shard_memory_ = options_of_units.memory;
  fsdp_ = std::make_unique<Fsdp>(model_->units(), std::move(options_of_units));
  if (resumes) {
    fsdp_->write_values([](const Parameter&) {});
  } else if (recipe.model.init == "pretrained") {
    const PretrainedWeights weights(recipe.model.hf);
    fsdp_->write_values([&](const Parameter& parameter) { weights.read(parameter); });
  } else {
    fsdp_->write_values(
        [&](const Parameter& parameter) { initialize(parameter, static_cast<uint64_t>(recipe.train.seed)); });
  }
  owned_ = owned_ranges(fsdp_->units(), data_parallel_.keepers);
  OptimizerOptions options_of_optimizer{data_parallel_.keepers, shard_memory_, {}};
  if (train_.stochastic_rounding && train_.precision == "bf16") {
    options_of_optimizer.rounding.emplace(static_cast<uint64_t>(train_.seed));
  }
  optimizer_ = make_optimizer(recipe.optimizer, fsdp_->units(), options_of_optimizer);
  if (train_.precision == "fp16_mixed") loss_scale_ = LossScale(train_.loss_scale.value_or(LossScaleRecipe{}));
}

int64_t Trainer::count_tokens(const StepBatch& batch) const {
  at::Tensor count = at::full({1}, batch.num_counted, at::kLong);
  mesh_.group(std::set<std::string>{"dp", "cp"}).with_purpose("count").all_reduce(count).wait();
  const int64_t total = count.item<int64_t>();
  if (total == 0) {
    throw AgreedError(
        "no label of this step counts: data.ignore_id, data.loss_mask or data.boundary_labels ignores every one");
  }
  return total;
}

StepOutcome Trainer::step(const StepBatch& batch, int64_t num_counted, double learning_rate, bool stop, bool measure,
                          bool saved) {
  StepOutcome outcome = compute_gradients(batch, num_counted, stop, saved);
  if (measure && !meter_) meter_ = std::make_unique<ParameterMeter>(owned_, fsdp_->units(), mesh_.world());
  if (measure) meter_->before_update();
  update(outcome, learning_rate);
  if (measure) outcome.parameters = meter_->after_update();
  return outcome;
}

StepOutcome Trainer::compute_gradients(const StepBatch& batch, int64_t num_counted, bool stop, bool saved) {
  fsdp_->begin_step();
  const double scale = loss_scale_.value();
  const at::Tensor loss_sum = backward(batch, scale / static_cast<double>(num_counted));
  if (scale != 1) multiply_gradients(at::scalar_tensor(1 / scale, loss_sum.options()));
  const at::Tensor votes = vote(loss_sum, stop, saved);
  const at::Tensor loss = votes[0] / num_counted, grad_norm = votes[1].sqrt();
  const at::Tensor both = loss + grad_norm;
  return {loss, grad_norm, both.sub(both).ne(0), votes[2], votes[3], scale};  // infinite minus infinite is not a number
}

namespace {

/// The host reads what it has computed itself; a device whose values would have to be waited for would hand the flag to
/// the optimizer's kernels. On the Meta device there is nothing to read.
bool read(const at::Tensor& flag) {
  return !flag.is_meta() && flag.item<bool>();
}

}  // namespace

void Trainer::update(const StepOutcome& outcome, double learning_rate) {
  const bool finite = !read(outcome.non_finite);
  loss_scale_.update(finite);
  if (!finite) return;
  optimizer_->step(learning_rate, clip_factor(outcome.grad_norm));
  fsdp_->shards_changed();
}

namespace {

/// To a GPU from pinned memory, in the order of its stream: the host does not wait.
at::Tensor on_device(const at::Tensor& tokens, at::Device device) {
  return device.is_cuda() ? tokens.pin_memory().to(device, /*non_blocking=*/true) : tokens.to(device);
}

}  // namespace

at::Tensor Trainer::forward(const MicroBatch& micro_batch) {
  const Sequence sequence = sequences_.of(micro_batch.documents);
  return model_->loss(on_device(micro_batch.ids, device_), on_device(micro_batch.labels, device_), sequence, *fsdp_);
}

HeldOutLoss Trainer::evaluate(int64_t count, const std::function<MicroBatch()>& next) {
  const at::NoGradGuard no_grad;
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions(device_).dtype(at::kDouble));
  at::Tensor num_counted = at::zeros({1}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const MicroBatch micro_batch = next();
    loss_sum.add_(forward(micro_batch));
    num_counted.add_(count_labels(micro_batch));
  }
  fsdp_->end_forward();
  const Group group = mesh_.group(std::set<std::string>{"dp", "cp"}).with_purpose("evaluate");
  group.all_reduce(loss_sum).wait();
  group.all_reduce(num_counted).wait();
  const int64_t total = num_counted.item<int64_t>();
  if (total == 0) {
    throw AgreedError(
        "no label of the held-out samples counts: evaluate.ignore_id, evaluate.loss_mask or evaluate.boundary_labels "
        "ignores every one");
  }
  return {loss_sum.item<double>() / static_cast<double>(total), total};
}

// The loss of each micro-batch is a sum; its backward starts from scale / (counted tokens of the step), so gradients of
// micro-batches and ranks are added up to the gradient of the mean, times the scale.
at::Tensor Trainer::backward(const StepBatch& batch, double start) {
  at::Tensor loss_sum = at::zeros({}, at::TensorOptions(device_).dtype(at::kDouble));
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    const at::Tensor loss = forward(batch.micro_batches[i]);
    fsdp_->begin_backward(/*last=*/i + 1 == batch.micro_batches.size());
    torch::autograd::backward({loss}, {at::full_like(loss, start)});
    fsdp_->end_backward();
    loss_sum.add_(loss.detach());
  }
  sums_.wait();
  return loss_sum;
}

// What the ranks learnt in this step becomes everyone's in one small all-reduce: loss sum (tp peers computed the same
// one, so the first of them speaks), squares of the owned gradients, requests to stop, parts of a checkpoint that are
// durable.
at::Tensor Trainer::vote(const at::Tensor& loss_sum, bool stop, bool saved) const {
  const bool speaks = mesh_.coordinate("tp") == 0;
  at::Tensor votes = at::stack({speaks ? loss_sum : at::zeros_like(loss_sum), owned_squares(owned_, device_),
                                at::full_like(loss_sum, stop ? 1.0 : 0.0), at::full_like(loss_sum, saved ? 1.0 : 0.0)});
  mesh_.world().with_purpose("vote").all_reduce(votes).wait();
  return votes;
}

// min(1, c / (norm + 1e-6)); undefined: gradients are not clipped.
at::Tensor Trainer::clip_factor(const at::Tensor& grad_norm) const {
  if (train_.clip_norm == 0) return {};
  return grad_norm.add(1e-6).reciprocal_().mul_(train_.clip_norm).clamp_max_(1);
}

void Trainer::multiply_gradients(const at::Tensor& factor) {
  for (const FlatBuffer* buffer : trainable_buffers(fsdp_->units())) {
    at::Tensor(buffer->shard_gradients()).mul_(factor);
    set_aside(buffer->shard_gradients());
  }
}

std::vector<ShardTensor> Trainer::shards() const {
  std::vector<ShardTensor> shards;
  for (const Unit& unit : fsdp_->units()) {
    for (const FlatBuffer& buffer : unit.buffers()) {
      shards.push_back({"", &buffer, {0, buffer.shard().numel}, buffer.shard_values()});
    }
  }
  const std::vector<ShardTensor> state = optimizer_->state();
  shards.insert(shards.end(), state.begin(), state.end());
  return shards;
}

void Trainer::write(TrainingState& state) const {
  state.num_updates = optimizer_->num_steps();
  state.loss_scale = loss_scale_.state();
}

void Trainer::resume(const TrainingState& state) {
  optimizer_->resume(state.num_updates);
  if (state.loss_scale) loss_scale_.resume(*state.loss_scale);
  fsdp_->shards_changed(/*frozen=*/true);
}

namespace {

/// Of what this rank keeps of a parameter.
bool finite_gradient(const FlatBuffer& buffer, const Segment& segment) {
  const Range kept = buffer.in_shard({segment.offset, segment.numel});
  return buffer.shard_gradients().narrow(0, kept.offset, kept.numel).isfinite().all().item<bool>();
}

}  // namespace

std::string Trainer::find_non_finite() const {
  std::vector<std::string> names;
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const FlatBuffer* buffer : trainable_buffers(fsdp_->units())) {
    for (const Segment& segment : buffer->segments()) {
      if (!finite_gradient(*buffer, segment)) first = std::min(first, static_cast<int64_t>(names.size()));
      names.push_back(segment.parameter->name);
    }
  }
  at::Tensor vote = at::full({1}, -first, at::kLong);
  mesh_.world().all_reduce(vote, Reduce::Max).wait();
  const int64_t index = -vote.item<int64_t>();
  return index < static_cast<int64_t>(names.size()) ? names[index] : "";
}

}  // namespace meshtrain
