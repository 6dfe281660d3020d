#include "runtime/program/forecast/rank_steps.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/program/forecast/continued.h"
#include "runtime/program/forecast/in_flight.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/optimizer/optimizer.h"

namespace meshtrain {
namespace {

/// Layers that are simulated at least: the first and the last may differ from those between.
constexpr int64_t kLeastLayers = 4;

/// Returns `decisions` for a model of `layers` layers, whose kinds are those of the first.
Decisions with_layers(Decisions decisions, int64_t layers) {
  ModelShape& shape = decisions.shape;
  shape.num_hidden_layers = layers;
  const auto count = static_cast<size_t>(layers);
  if (shape.layer_types.size() > count) shape.layer_types.resize(count);
  if (shape.no_rope_layers.size() > count) shape.no_rope_layers.resize(count);
  std::erase_if(shape.experts.mlp_only_layers, [&](int64_t layer) { return layer >= layers; });
  return decisions;
}

/// Returns the forecast of a step with `count` micro-batches from those with `counts`, of which each of `steps` has
/// one.
StepForecast over_micro_batches(const std::vector<StepForecast>& steps, const std::vector<int64_t>& counts,
                                int64_t count) {
  if (counts.back() == count) return steps.back();
  StepForecast all = continued(steps[0], steps[1], (count - counts[1]) / (counts[1] - counts[0]));
  for (StepMemory StepForecast::*phase : {&StepForecast::gradients, &StepForecast::update}) {
    const int64_t inputs = (all.*phase).inputs;
    all.*phase = steps[1].*phase;  // of which the tokens alone grow
    (all.*phase).inputs = inputs;
  }
  return all;
}

/// Returns the forecast of a step with `count` micro-batches, without its time, from two short steps, which tell what
/// each round of micro-batches adds, and `at_peak`, whose memory is that of all longer ones but for the tokens.
StepForecast over_rounds(const StepForecast& one, const StepForecast& two, const StepForecast& at_peak,
                         int64_t rounds) {
  StepForecast all = continued(one, two, rounds - 2);
  for (StepMemory StepForecast::*phase : {&StepForecast::gradients, &StepForecast::update}) {
    const int64_t inputs = (all.*phase).inputs;
    all.*phase = at_peak.*phase;
    (all.*phase).inputs = inputs;
  }
  all.offload.host_activations = at_peak.offload.host_activations;
  return all;
}

/// Returns the numbers of micro-batches that are simulated.
std::vector<int64_t> counts_of(const Decisions& decisions, int64_t rank, int64_t all) {
  const int64_t pp = decisions.layout.size(kPipelineAxis);
  if (pp == 1) return all > 2 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{all};
  const InFlight peak =
      micro_batches_to_peak(decisions.pipeline, pp, decisions.layout.coordinate(rank, kPipelineAxis), all);
  if (peak.micro_batches + peak.round >= all) return {all};
  return {peak.micro_batches, peak.micro_batches + peak.round};
}

}  // namespace

RankSteps::RankSteps(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine, int64_t rank,
                     const TimelineChange& change)
    : decisions_(decisions),
      hosts_(hosts),
      machine_(machine),
      change_(change),
      rank_(rank),
      count_(decisions.batch.global_batch / decisions.layout.size(kDataAxis) / decisions.batch.micro_batch),
      counts_(counts_of(decisions, rank, count_)) {
  const auto pp = static_cast<size_t>(decisions.layout.size(kPipelineAxis));
  auto stage = static_cast<size_t>(decisions.layout.coordinate(rank, kPipelineAxis));
  for (; stage < decisions.pipeline.blocks.size(); stage += pp) own_.push_back(stage);
}

int64_t RankSteps::least_layers() const {
  int64_t least = decisions_.shape.num_hidden_layers;
  for (const size_t stage : own_) least = std::min(least, decisions_.pipeline.blocks[stage]);
  return least;
}

int64_t RankSteps::most_removed() const {
  if (!repeats_alike(decisions_) || decisions_.recomputation.first) return 0;
  const int64_t layers = least_layers(), period = layer_period(decisions_);
  int64_t few = layers % period;
  while (few < kLeastLayers) few += period;
  return (layers - std::min(few, layers)) / period;
}

std::vector<StepForecast> RankSteps::simulated(int64_t removed, Recording recording,
                                               const std::vector<int64_t>& counts) const {
  const int64_t fewer = removed * layer_period(decisions_);
  const auto stages = static_cast<int64_t>(std::max<size_t>(own_.size(), 1));
  Decisions decisions = with_layers(decisions_, decisions_.shape.num_hidden_layers - stages * fewer);
  for (const size_t stage : own_) decisions.pipeline.blocks[stage] -= fewer;
  return simulate(decisions, hosts_, rank_, counts, recording);
}

std::vector<StepForecast> RankSteps::timed(int64_t removed, const std::vector<int64_t>& counts) const {
  Recording recording = Recording::None;
  const bool needs_signatures = machine_ != nullptr && (change_ || !machine_->operators.empty());
  if (machine_ != nullptr) recording = needs_signatures ? Recording::Signatures : Recording::Timeline;
  std::vector<StepForecast> steps = simulated(removed, recording, counts);
  for (StepForecast& step : steps) {
    if (machine_ != nullptr) {
      if (change_) step.timeline = change_(step.timeline);
      step.time = time_of(step.timeline, *machine_);
      step.actions = actions_of(step.timeline, *machine_);
    }
    step.timeline = {};
  }
  return steps;
}

StepForecast RankSteps::shortest() const {
  return timed(most_removed(), {least_micro_batches(decisions_)}).front();
}

StepForecast RankSteps::without(int64_t removed) const {
  // FullShard gathers for each action what the one before did not leave, so short steps gather less often.
  if (machine_ == nullptr && counts_.size() == 2 && decisions_.sharding.mode != ShardingMode::FullShard) {
    const int64_t round = counts_[1] - counts_[0];
    if (counts_[0] > 2 * round) {  // three steps, of which two are short, take less than two long ones
      const std::vector<StepForecast> steps = simulated(removed, Recording::None, {round, 2 * round, counts_[1]});
      StepForecast all = over_rounds(steps[0], steps[1], steps[2], count_ / round);
      all.before_backward = steps[2].before_backward;
      return all;
    }
  }
  const std::vector<StepForecast> steps = timed(removed, counts_);
  StepForecast all = over_micro_batches(steps, counts_, count_);
  all.before_backward = steps.back().before_backward;
  all.actions = steps.back().actions;
  return all;
}

StepForecast RankSteps::complete() const {
  const int64_t removed = most_removed();
  return removed > 1 ? complete(without(removed))
                     : without(0);  // with one the step with all layers is simulated anyway
}

StepForecast RankSteps::complete(StepForecast of_few) const {
  const int64_t period = layer_period(decisions_);
  int64_t removed = most_removed();
  while (removed > 1) {
    StepForecast next = without(removed - 1);
    const int64_t grown = next.gradients.total() - of_few.gradients.total();
    if (grown >= next.before_backward - of_few.before_backward) return continued(of_few, next, removed - 1);
    const int64_t few = least_layers() - removed * period;
    const int64_t doubled = std::max<int64_t>(removed - (few / period + 1), 0);
    of_few = doubled == removed - 1 ? std::move(next) : without(doubled);
    removed = doubled;
  }
  return removed == 0 ? of_few : without(0);
}

bool repeats_alike(const Decisions& decisions) {
  const AdapterShape& adapter = decisions.shape.adapter;
  const auto names_layers = [](const std::vector<std::string>& patterns) {
    return std::ranges::any_of(patterns,
                               [](const std::string& pattern) { return pattern.find('.') != std::string::npos; });
  };
  if (!adapter.layers.empty() || names_layers(adapter.targets) || !adapter.train.empty()) return false;
  return decisions.freeze.empty() && optimizer_traits(decisions.optimizer.name).by_element;
}

int64_t kind_period(const Decisions& decisions) {
  const ModelShape& shape = decisions.shape;
  const int64_t layers = shape.num_hidden_layers;
  const auto repeats = [&](int64_t period) {
    for (int64_t layer = period; layer < layers; ++layer) {
      const int64_t before = layer - period;
      if (window_of(shape, layer) != window_of(shape, before) || is_rotary(shape, layer) != is_rotary(shape, before) ||
          is_locally_rotary(shape, layer) != is_locally_rotary(shape, before) ||
          has_experts(shape, layer) != has_experts(shape, before)) {
        return false;
      }
    }
    return true;
  };
  int64_t period = 1;
  while (period < layers && !repeats(period)) ++period;
  return std::lcm(period, decisions.recomputation.every);
}

int64_t layer_period(const Decisions& decisions) {
  // Each unit gathered into reused memory takes one of 1 + prefetch buffers, and its gradients take one of two. The
  // number of sublayers in that many blocks is a multiple of this number too. With an even prefetch the larger
  // sublayers take one of 1 + prefetch / 2 buffers (fsdp/offsets.h).
  int64_t buffers = std::lcm<int64_t>(1 + decisions.fsdp.prefetch, 2);
  if (decisions.units.sublayers) buffers = std::lcm(buffers, 1 + decisions.fsdp.prefetch / 2);
  return std::lcm(kind_period(decisions), buffers * decisions.units.layers);
}

}  // namespace meshtrain
