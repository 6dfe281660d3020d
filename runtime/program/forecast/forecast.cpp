#include "runtime/program/forecast/forecast.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/training/model/shape.h"
#include "runtime/training/optimizer/optimizer.h"

namespace meshtrain {
namespace {

/// Layers that are simulated at least: the first and the last may differ from those between.
constexpr int64_t kLeastLayers = 4;

/// Returns true when a step treats all layers of one kind alike. Freezing and adapters may depend on a layer's
/// number, and Muon's work per rank on the number of matrices.
bool repeats_alike(const Decisions& decisions) {
  const AdapterShape& adapter = decisions.shape.adapter;
  const auto names_layers = [](const std::vector<std::string>& patterns) {
    return std::ranges::any_of(patterns,
                               [](const std::string& pattern) { return pattern.find('.') != std::string::npos; });
  };
  if (!adapter.layers.empty() || names_layers(adapter.targets) || !adapter.train.empty()) return false;
  return decisions.freeze.empty() && optimizer_traits(decisions.optimizer.name).by_element;
}

/// Returns `decisions` for a model of the first `layers` layers.
Decisions with_layers(Decisions decisions, int64_t layers) {
  ModelShape& shape = decisions.shape;
  shape.num_hidden_layers = layers;
  const auto count = static_cast<size_t>(layers);
  if (shape.layer_types.size() > count) shape.layer_types.resize(count);
  if (shape.no_rope_layers.size() > count) shape.no_rope_layers.resize(count);
  return decisions;
}

/// Calls `combine` with each pair of seconds of `one` and `other`, and returns the results in the same fields.
template <class Combine>
TimeForecast each_time(const TimeForecast& one, const TimeForecast& other, const Combine& combine) {
  TimeForecast result;
  for (double TimeForecast::*part : {&TimeForecast::products, &TimeForecast::attention, &TimeForecast::elementwise,
                                     &TimeForecast::optimizer, &TimeForecast::copies, &TimeForecast::exposed_copies}) {
    result.*part = std::max(combine(one.*part, other.*part), 0.0);
  }
  for (std::map<std::string, double> TimeForecast::*groups : {&TimeForecast::collectives, &TimeForecast::exposed}) {
    for (const auto& [group, seconds] : other.*groups) {
      const auto found = (one.*groups).find(group);
      (result.*groups)[group] = std::max(combine(found != (one.*groups).end() ? found->second : 0.0, seconds), 0.0);
    }
  }
  return result;
}

/// Calls `combine` with each pair of numbers of `one` and `other`, and returns the results in the same fields.
template <class Combine>
StepForecast each(const StepForecast& one, const StepForecast& other, const Combine& combine) {
  StepForecast result;
  for (StepMemory StepForecast::*phase : {&StepForecast::gradients, &StepForecast::update}) {
    for (int64_t StepMemory::*part :
         {&StepMemory::parameters, &StepMemory::gathered, &StepMemory::gradients, &StepMemory::optimizer,
          &StepMemory::activations, &StepMemory::temporaries, &StepMemory::inputs, &StepMemory::exchange}) {
      result.*phase.*part = combine(one.*phase.*part, other.*phase.*part);
    }
  }
  for (int64_t OffloadForecast::*part :
       {&OffloadForecast::host, &OffloadForecast::disk, &OffloadForecast::to_device, &OffloadForecast::to_host,
        &OffloadForecast::host_activations, &OffloadForecast::copied_activations}) {
    result.offload.*part = combine(one.offload.*part, other.offload.*part);
  }
  result.num_hosts = other.num_hosts;
  result.model_flops = combine(one.model_flops, other.model_flops);
  if (one.time && other.time) result.time = each_time(*one.time, *other.time, combine);
  for (const auto& [key, traffic] : other.traffic) {
    const auto found = one.traffic.find(key);
    const Traffic before = found != one.traffic.end() ? found->second : Traffic{};
    result.traffic[key] = {combine(before.calls, traffic.calls), combine(before.buffer_bytes, traffic.buffer_bytes),
                           combine(before.sent_bytes, traffic.sent_bytes)};
  }
  return result;
}

/// Returns the forecast for `repeats` repetitions more than that of `second`, which has one more than `first`.
StepForecast continued(const StepForecast& first, const StepForecast& second, int64_t repeats) {
  return each(first, second, [&]<class Number>(Number one, Number other) {
    return other + static_cast<Number>(repeats) * (other - one);
  });
}

/// Returns the forecast of a step with `count` micro-batches from those of one and of two, of which `steps` has the
/// ones that there are.
StepForecast over_micro_batches(const std::vector<StepForecast>& steps, int64_t count) {
  if (count <= 2) return steps.back();
  StepForecast all = continued(steps[0], steps[1], count - 2);
  for (StepMemory StepForecast::*phase : {&StepForecast::gradients, &StepForecast::update}) {
    const int64_t inputs = (all.*phase).inputs;
    all.*phase = steps[1].*phase;  // of which the tokens alone grow
    (all.*phase).inputs = inputs;
  }
  return all;
}

/// The steps of a rank, of the model with so many layers as are asked for.
class Layers {
 public:
  Layers(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine, int64_t rank)
      : decisions_(decisions), hosts_(hosts), machine_(machine), rank_(rank) {
    count_ = decisions.batch.global_batch / decisions.layout.size(kDataAxis) / decisions.batch.micro_batch;
  }
  int64_t micro_batches() const { return count_; }

  /// Returns the steps of one and of two micro-batches; of as many as there are when those are few.
  std::vector<StepForecast> steps_of(int64_t layers, Recording recording) const {
    const std::vector<int64_t> counts = count_ > 2 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{count_};
    return simulate(with_layers(decisions_, layers), hosts_, rank_, counts, recording);
  }

  StepForecast of(int64_t layers) const {
    Recording recording = Recording::None;
    if (machine_ != nullptr) recording = machine_->operators.empty() ? Recording::Timeline : Recording::Signatures;
    std::vector<StepForecast> steps = steps_of(layers, recording);
    for (StepForecast& step : steps) {
      if (machine_ != nullptr) step.time = time_of(step.timeline, *machine_);
      step.timeline = {};
    }
    StepForecast all = over_micro_batches(steps, count_);
    all.before_backward = steps.back().before_backward;
    return all;
  }

 private:
  const Decisions& decisions_;
  const ForecastHosts& hosts_;
  const Machine* machine_;
  int64_t rank_;
  int64_t count_;
};

/// Returns the forecast of the complete model from the forecasts of `few` layers, `of_few`, and of one period more.
/// Adds layers until the peak grows at least as fast as the activations that a forward leaves: with few layers the peak
/// may be elsewhere.
StepForecast over_layers(const Decisions& decisions, const Layers& layers, int64_t few, StepForecast of_few) {
  const int64_t all = decisions.shape.num_hidden_layers, period = layer_period(decisions);
  while (few + period < all) {
    StepForecast next = layers.of(few + period);
    const int64_t grown = next.gradients.total() - of_few.gradients.total();
    if (grown >= next.before_backward - of_few.before_backward) {
      return continued(of_few, next, (all - few - period) / period);
    }
    const int64_t doubled = few + (few / period + 1) * period;
    of_few = doubled == few + period ? std::move(next) : layers.of(std::min(doubled, all));
    few = std::min(doubled, all);
  }
  return few == all ? of_few : layers.of(all);
}

/// Returns the number of layers that is simulated first, which ends as all layers do.
int64_t few_layers(const Decisions& decisions) {
  const int64_t layers = decisions.shape.num_hidden_layers, period = layer_period(decisions);
  if (!repeats_alike(decisions)) return layers;
  int64_t few = layers % period;
  while (few < kLeastLayers) few += period;
  return std::min(few, layers);
}

}  // namespace

int64_t layer_period(const Decisions& decisions) {
  const ModelShape& shape = decisions.shape;
  const int64_t layers = shape.num_hidden_layers;
  const auto repeats = [&](int64_t period) {
    for (int64_t layer = period; layer < layers; ++layer) {
      const int64_t before = layer - period;
      if (window_of(shape, layer) != window_of(shape, before) || is_rotary(shape, layer) != is_rotary(shape, before) ||
          is_locally_rotary(shape, layer) != is_locally_rotary(shape, before)) {
        return false;
      }
    }
    return true;
  };
  int64_t period = 1;
  while (period < layers && !repeats(period)) ++period;
  period = std::lcm(period, decisions.recomputation.every);
  // Each unit gathered into reused memory takes one of 1 + prefetch buffers, and its gradients take one of two. The
  // number of sublayers in that many blocks is a multiple of this number too. With an even prefetch the larger
  // sublayers take one of 1 + prefetch / 2 buffers (fsdp/offsets.h).
  int64_t buffers = std::lcm<int64_t>(1 + decisions.fsdp.prefetch, 2);
  if (decisions.units.sublayers) buffers = std::lcm(buffers, 1 + decisions.fsdp.prefetch / 2);
  return std::lcm(period, buffers * decisions.units.layers);
}

StepForecast forecast_rank(const Decisions& decisions, const ForecastHosts& hosts, int64_t rank,
                           const Machine* machine) {
  const int64_t few = few_layers(decisions);
  const Layers layers(decisions, hosts, machine, rank);
  return over_layers(decisions, layers, few, layers.of(few));
}

std::vector<Timeline> timelines(const Decisions& decisions, const ForecastHosts& hosts) {
  const int64_t few = few_layers(decisions), more = few + layer_period(decisions);
  std::vector<Timeline> found;
  for (const int64_t rank : std::set<int64_t>{0, decisions.layout.size() - 1}) {
    const Layers layers(decisions, hosts, nullptr, rank);
    for (const int64_t count : {few, std::min(more, decisions.shape.num_hidden_layers)}) {
      for (StepForecast& step : layers.steps_of(count, Recording::Signatures))
        found.push_back(std::move(step.timeline));
    }
  }
  return found;
}

RunForecast forecast(const Decisions& decisions, const ForecastHosts& hosts, const Machine* machine) {
  const int64_t last = decisions.layout.size() - 1, few = few_layers(decisions);
  const Layers of_last(decisions, hosts, machine, last), of_first(decisions, hosts, machine, 0);
  StepForecast step = of_last.of(few), first = last == 0 ? step : of_first.of(few);
  const bool first_is_slower = machine != nullptr && first.time->total() > step.time->total();
  const bool first_is_fuller = first.memory().total() > step.memory().total();
  const auto of_all = [&](bool is_first, StepForecast of_few) {
    return over_layers(decisions, is_first ? of_first : of_last, few, std::move(of_few));
  };
  RunForecast run{of_all(first_is_fuller, first_is_fuller ? first : step), first_is_fuller ? 0 : last,
                  of_last.micro_batches()};
  if (machine != nullptr && first_is_slower != first_is_fuller) {
    run.step.time = of_all(first_is_slower, first_is_slower ? std::move(first) : std::move(step)).time;
  }
  return run;
}

}  // namespace meshtrain
