#include "runtime/training/trainer/trainer.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/files/glob.h"
#include "mesh/device/aten.h"
#include "mesh/device/device_transfer.h"
#include "mesh/flight_recorder.h"
#include "runtime/training/trainer/run_schedule.h"

namespace meshtrain {
namespace {

/// Adds the parts of this rank's shard of `buffer` whose parameters one of `globs` matches.
void add_parameters(const FlatBuffer& buffer, const std::vector<std::string>& globs, std::vector<ShardTensor>& shards) {
  for (const Segment& segment : buffer.segments()) {
    const Range range = buffer.in_shard({segment.offset, segment.numel});
    if (range.numel == 0 || !first_match(globs, segment.parameter->name)) continue;
    shards.push_back({"", &buffer, range, buffer.shard_values().narrow(0, range.offset, range.numel)});
  }
}

}  // namespace

Trainer::Trainer(ModelParts parts, ParameterIndex index, const DeviceMesh& mesh, const TrainerOptions& options,
                 const OptimizerFactory& make, Pipeline pipeline)
    : parts_(std::move(parts)),
      pipeline_(std::move(pipeline)),
      groups_(groups_of(parts_)),
      index_(std::move(index)),
      mesh_(mesh),
      clip_norm_(options.clip_norm),
      scales_loss_(options.loss_scale),
      saved_frozen_(options.saved_frozen),
      device_(device_of(groups_)),
      owned_(owned_ranges(groups_)) {
  std::optional<StochasticRounding> rounding;
  if (options.rounding_seed) rounding.emplace(*options.rounding_seed);
  optimizer_ = make(options.optimizer, groups_, rounding);
  if (groups_.front().fsdp->pages_state() && optimizer_->pagers().empty() && !optimizer_->state().empty()) {
    throw InputError("optimizer.name", options.optimizer.name +
                                           " cannot update parameters on the GPU with state that is offloaded: leave "
                                           "out parallel.fsdp.offload.parameters");
  }
  if (scales_loss_) loss_scale_ = LossScale(*options.loss_scale);
  if (options.skip_outliers) outliers_.emplace(*options.skip_outliers, device_);
  const bool is_offloaded = groups_.front().fsdp->is_offloaded();
  for (const ParameterGroup& group : groups_) {
    if (group.fsdp->is_offloaded() == is_offloaded &&
        group.fsdp->pages_state() == groups_.front().fsdp->pages_state()) {
      continue;
    }
    throw std::invalid_argument(
        "shards or state of some parts of the model are offloaded, but not those of others: give all parts the same "
        "FsdpOptions::memory and state_memory");
  }
  check_gradient_memory();
  if (!is_offloaded) return;
  if (!pipeline_.shared.empty()) {
    throw std::invalid_argument(
        "several stages share a weight whose gradient is offloaded: its sum over them is not possible on the host");
  }
  optimizer_->report_updates();
  watch_leaving_gradients();
}

void Trainer::check_gradient_memory() const {
  const bool reused = std::ranges::any_of(
      groups_, [](const ParameterGroup& group) { return group.fsdp->memory().gradients.is_reused(); });
  if (!reused || pipeline_.schedule != ScheduleKind::ZeroBubble) return;
  throw std::invalid_argument(
      "gradients are reduced in the backward of each micro-batch, but this schedule computes some later: set "
      "FsdpOptions::accumulate_unsharded");
}

void Trainer::watch_leaving_gradients() {
  leaving_.emplace(owned_, device_);
  for (const ParameterGroup& group : groups_) {
    group.fsdp->on_reduced([this](const FlatBuffer& buffer, const at::Tensor& gradients) {
      const at::NoGradGuard no_grad;
      if (unscale_.defined()) gradients.mul_(unscale_);
      leaving_->take(buffer, gradients);
    });
  }
}

std::vector<int64_t> Trainer::sums_of(std::vector<int64_t> numbers) const {
  at::Tensor sums = at::tensor(numbers, at::kLong);
  tokens().with_purpose("count").all_reduce(sums).wait();
  std::copy_n(sums.const_data_ptr<int64_t>(), numbers.size(), numbers.begin());
  return numbers;
}

Trainer::TokenCounts Trainer::count(const StepBatch& batch) const {
  const bool padding = batch.num_padding.has_value();
  const auto sums = padding ? sums_of({batch.num_counted, *batch.num_padding}) : sums_of({batch.num_counted});
  return {sums[0], padding ? sums[1] : 0};
}

int64_t Trainer::count_tokens(const StepBatch& batch) const {
  const auto own = static_cast<int64_t>(batch.micro_batches.size());
  const std::vector<int64_t> sums = sums_of({batch.num_counted, 1, own, own * own});
  if (sums[2] * sums[2] != sums[1] * sums[3]) {  // the numbers have a variance
    throw AgreedError("ranks have different numbers of micro-batches in this step, " + std::to_string(sums[2]) +
                      " in all: give each the same number, if need be with labels that do not count");
  }
  const int64_t counted = sums[0];
  if (counted > 0) return counted;
  throw AgreedError("no label of this step counts: StepBatch::num_counted is 0 on every rank; call skip() instead");
}

StepResult Trainer::skip(const StepRequest& request) const {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  FlightRecorder::own().set_work("vote");
  at::Tensor votes = to_device(at::tensor({request.stop ? 1.0 : 0.0, request.saved ? 1.0 : 0.0}, at::kDouble), device_);
  mesh_.world().with_purpose("vote").all_reduce(votes).wait();
  votes = votes.cpu();
  return {.loss = kNone, .grad_norm = kNone, .num_stop = votes[0].item<double>(), .num_saved = votes[1].item<double>()};
}

void Trainer::use_graph(std::unique_ptr<DeviceGraph> graph) {
  graph_ = std::make_unique<StepGraph>(std::move(graph), [this](const StepBatch& batch, const StepInputs& inputs) {
    const StepOutcome outcome(compute_gradients(batch, inputs));
    make_update(outcome, inputs.learning_rate);
    return outcome.values;
  });
}

StepOutcome Trainer::step(const StepBatch& batch, int64_t num_counted, const StepRequest& request) {
  if (std::isnan(request.learning_rate)) {
    throw std::invalid_argument(
        "Trainer::step() has no learning rate: set StepRequest::learning_rate; OptimizerOptions::learning_rate is only "
        "the peak of a schedule");
  }
  const bool measure = request.measure;
  const StepInputs inputs = inputs_of(num_counted, request);
  const bool as_graph = graph_ && !measure && StepGraph::takes(batch);
  StepOutcome outcome(as_graph ? graph_->run(batch, inputs) : compute_gradients(batch, inputs));
  outcome.loss_scale = loss_scale_.value();
  if (measure) finish_copies();
  if (measure && !meter_) meter_ = std::make_unique<ParameterMeter>(index_, groups_, mesh_.world());
  if (measure) meter_->before_update();
  if (!as_graph) {
    const ComputeTimer timer;
    make_update(outcome, inputs.learning_rate);
    if (device_.is_cpu()) outcome.optimizer_seconds = timer.seconds();
  }
  if (graph_ && !measure) limit_graph();  // on all ranks: samples of some may have documents, which no graph takes
  if (measure) outcome.parameters = meter_->after_update();
  shards_changed({.rounded = optimizer_->rounds()});
  undecided_ = outcome;
  return outcome;
}

StepOutcome Trainer::compute_gradients(const StepBatch& batch, int64_t num_counted, const StepRequest& request) {
  StepOutcome outcome(compute_gradients(batch, inputs_of(num_counted, request)));
  outcome.loss_scale = loss_scale_.value();
  return outcome;
}

void Trainer::update(const StepOutcome& outcome, double learning_rate) {
  make_update(outcome, at::full_like(outcome.grad_norm, learning_rate));
  shards_changed({.rounded = optimizer_->rounds()});
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

const PipelineSchedule& Trainer::schedule_of(size_t num_micro_batches) {
  const auto wanted = static_cast<int>(num_micro_batches);
  if (!schedule_ || schedule_->micro_batches != wanted) {
    schedule_ = make_schedule(pipeline_.schedule, pipeline_.num_ranks(), static_cast<int>(parts_.size()), wanted);
  }
  return *schedule_;
}

at::Tensor Trainer::compute_gradients(const StepBatch& batch, const StepInputs& inputs) {
  const at::AutoGradMode records(true);  // also where the caller has a NoGradGuard
  for (const ParameterGroup& group : groups_) group.fsdp->begin_step();
  for (const auto& part : parts_) part->begin_step(inputs.loss_scale, static_cast<int64_t>(batch.micro_batches.size()));
  if (leaving_ && scales_loss_) unscale_ = inputs.loss_scale.reciprocal();
  // The loss of each micro-batch is a sum, and its backward starts from scale / (counted tokens of the step). So
  // gradients of micro-batches and ranks add up to the gradient of the mean, times the scale.
  const at::Tensor loss_sum = run_schedule(schedule_of(batch.micro_batches.size()), parts_, batch,
                                           inputs.loss_scale / inputs.num_counted, pipeline_);
  sum_shared();
  if (scales_loss_ && !leaving_) multiply_gradients(inputs.loss_scale.reciprocal());
  const at::Tensor part_sums = end_parts();
  const at::Tensor votes = vote(loss_sum, part_sums, inputs);
  const at::Tensor loss = votes[0] / inputs.num_counted, grad_norm = votes[1].sqrt(), both = loss + grad_norm;
  const at::Tensor non_finite = both.sub(both).ne(0).to(at::kDouble);  // infinite minus infinite is not a number
  const at::Tensor outliers = outliers_ ? outliers_->judge(loss, grad_norm) : at::zeros_like(non_finite);
  const at::Tensor values = at::stack({loss, grad_norm, non_finite, votes[2], votes[3], loss_sum, outliers});
  return part_sums.defined() ? at::cat({values, votes.narrow(0, 4, part_sums.numel())}) : values;
}

// Ends the step with an all-reduce that has a timeout: communication inside a graph has none.
void Trainer::limit_graph() const {
  at::Tensor after = at::zeros({1}, device_);
  mesh_.world().with_purpose("graph").all_reduce(after).wait();
}

void Trainer::make_update(const StepOutcome& outcome, const at::Tensor& learning_rate) {
  FlightRecorder::own().set_work("optimizer");
  const at::Tensor skipped = (outcome.non_finite + outcome.outliers).ne(0).to(at::kDouble);
  if (outliers_) outliers_->record(outcome.loss, outcome.grad_norm, outcome.non_finite);
  at::Tensor numbers = at::stack({outcome.grad_norm, skipped, learning_rate});
  if (leaving_ && !device_.is_meta()) {
    numbers = numbers.cpu();
    mesh_.world().check();  // the numbers may be from a collective that failed
  }
  finish_copies();
  optimizer_->step({numbers[2], clip_factor(numbers[0]), numbers[1].to(at::kBool)});
  if (!outcome.part_sums.defined()) return;
  for (const auto& part : parts_) part->update(outcome.part_sums, numbers[1]);
}

void Trainer::finish_copies() const {
  for (const ParameterGroup& group : groups_) group.fsdp->finish_copies();
}

void Trainer::await_copies() const {
  finish_copies();
  optimizer_->finish_copies();
}

void Trainer::check_written() const {
  shard_memory().check_written();
  state_memory().check_written();
}

bool Trainer::copies() const {
  const Fsdp& fsdp = *groups_.front().fsdp;
  return fsdp.is_offloaded() || fsdp.pages_state();
}

CopyCosts Trainer::copy_costs() const {
  CopyCosts costs = optimizer_->copy_costs();
  for (const ParameterGroup& group : groups_) costs = costs + group.fsdp->copy_costs();
  return costs;
}

void Trainer::sum_shared() const {
  if (!pipeline_.shared.empty()) FlightRecorder::own().set_work("sum of shared gradients");
  for (const SharedBuffer& shared : pipeline_.shared) {
    at::Tensor gradients = shared.buffer->shard_gradients();
    shared.holders.with_purpose("pp.gradients").all_reduce(gradients).wait();
    set_aside(gradients);
  }
}

at::Tensor Trainer::end_parts() const {
  at::Tensor sums;
  for (const auto& part : parts_) {
    const at::Tensor own = part->end_step();
    if (own.defined()) sums = sums.defined() ? sums + own : own;
  }
  return sums;
}

// One small all-reduce makes the numbers of this step known to all ranks: the loss sum (tp peers have the same sum, so
// only the first of them adds it), squares of the owned gradients, stop requests, durable parts of a checkpoint, and
// what parts have counted.
at::Tensor Trainer::vote(const at::Tensor& loss_sum, const at::Tensor& part_sums, const StepInputs& inputs) const {
  FlightRecorder::own().set_work("norm and vote");
  const bool speaks = pipeline_.has_loss() && groups_.front().replicas.part().tp == 0;
  const at::Tensor squares = leaving_ ? leaving_->sum() : owned_squares(owned_, device_);
  at::Tensor votes = at::stack({speaks ? loss_sum : at::zeros_like(loss_sum), squares, inputs.stop, inputs.saved});
  if (part_sums.defined()) votes = at::cat({votes, part_sums});
  mesh_.world().with_purpose("vote").all_reduce(votes).wait();
  return votes;
}

// Returns min(1, c / (norm + 1e-6)); undefined when gradients are not clipped.
at::Tensor Trainer::clip_factor(const at::Tensor& grad_norm) const {
  if (clip_norm_ == 0) return {};
  return grad_norm.add(1e-6).reciprocal_().mul_(clip_norm_).clamp_max_(1);
}

void Trainer::shards_changed(const ShardChange& change) {
  for (const ParameterGroup& group : groups_) group.fsdp->shards_changed(change);
}

void Trainer::multiply_gradients(const at::Tensor& factor) {
  for (const FlatBuffer* buffer : trainable_buffers(groups_)) {
    at::Tensor(buffer->shard_gradients()).mul_(factor);
    set_aside(buffer->shard_gradients());
  }
}

std::vector<ShardTensor> Trainer::shards() const {
  await_copies();
  std::vector<ShardTensor> shards;
  for (const ParameterGroup& group : groups_) {
    for (const Unit& unit : group.fsdp->units()) {
      for (const FlatBuffer& buffer : unit.buffers()) {
        if (buffer.trainable()) {
          shards.push_back({"", &buffer, {0, buffer.shard().numel}, buffer.shard_values()});
        } else {
          add_parameters(buffer, saved_frozen_, shards);
        }
      }
    }
  }
  const std::vector<ShardTensor> state = optimizer_->state();
  shards.insert(shards.end(), state.begin(), state.end());
  return shards;
}

void Trainer::write(TrainingState& state) {
  state.num_updates = optimizer_->num_steps();
  state.loss_scale = loss_scale().state();
  state.recent = outliers_ ? std::optional(outliers_->state()) : std::nullopt;
}

void Trainer::resume(const TrainingState& state) {
  optimizer_->resume(state.num_updates);
  undecided_.reset();
  if (state.loss_scale) loss_scale_.resume(*state.loss_scale);
  if (outliers_) outliers_->resume(state.recent.value_or(TrainingState::RecentSteps{}));
  shards_changed({.frozen = true});
}

}  // namespace meshtrain
