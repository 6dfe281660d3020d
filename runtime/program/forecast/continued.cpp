#include "runtime/program/forecast/continued.h"

#include <algorithm>
#include <map>
#include <string>

namespace meshtrain {
namespace {

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

/// The same with those of the actions of `other`.
template <class Combine>
ActionSeconds each_action(const ActionSeconds& one, const ActionSeconds& other, const Combine& combine) {
  ActionSeconds result;
  for (double ActionSeconds::*part : {&ActionSeconds::before, &ActionSeconds::after, &ActionSeconds::message}) {
    result.*part = std::max(combine(one.*part, other.*part), 0.0);
  }
  for (const auto& [action, seconds] : other.actions) {
    const auto found = one.actions.find(action);
    result.actions[action] = std::max(combine(found != one.actions.end() ? found->second : 0.0, seconds), 0.0);
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
  result.actions = each_action(one.actions, other.actions, combine);
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

}  // namespace

StepForecast continued(const StepForecast& first, const StepForecast& second, int64_t repeats) {
  return each(first, second, [&]<class Number>(Number one, Number other) {
    return other + static_cast<Number>(repeats) * (other - one);
  });
}

}  // namespace meshtrain
