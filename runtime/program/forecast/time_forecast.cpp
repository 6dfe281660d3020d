#include "runtime/program/forecast/time_forecast.h"

#include <algorithm>
#include <variant>
#include <vector>

namespace meshtrain {
namespace {

/// The clock of a rank that makes a step.
class StepClock {
 public:
  StepClock(const Timeline& timeline, const Machine& machine) : timeline_(timeline), machine_(machine) {}

  void operator()(const OperatorCall& call) {
    const double seconds = machine_.seconds(call, timeline_) + machine_.call_seconds;
    now_ += seconds;
    part_of(call) += seconds;
  }

  void operator()(const CollectiveCall& call) {
    const double seconds = machine_.seconds(call), beside = seconds * machine_.overlap;
    time_.collectives[call.group] += seconds;
    // The part that computing cannot run beside holds it up at once.
    time_.exposed[call.group] += seconds - beside;
    now_ += seconds - beside;
    double& free = queues_[call.queue];
    free = std::max(free, now_) + beside;
    collectives_.push_back({call.group, free});
  }

  void operator()(const CollectiveWait& wait) {
    ActiveCollective& active = collectives_.at(wait.collective);
    const double end = std::max(active.end, now_) + (active.is_awaited ? 0 : machine_.wait_seconds);
    active.is_awaited = true;
    time_.exposed[active.group] += end - now_;
    now_ = end;
  }

  TimeForecast time() {
    for (size_t i = 0; i < collectives_.size(); ++i) (*this)(CollectiveWait{i});
    return time_;
  }

 private:
  struct ActiveCollective {
    std::string group;
    double end = 0;
    bool is_awaited = false;
  };

  double& part_of(const OperatorCall& call) {
    if (call.part == TimelinePart::Update) return time_.optimizer;
    switch (call.kind) {
      case OperatorCall::Kind::Product:
        return time_.products;
      case OperatorCall::Kind::Attention:
        return time_.attention;
      case OperatorCall::Kind::Elementwise:
        break;
    }
    return time_.elementwise;
  }

  const Timeline& timeline_;
  const Machine& machine_;
  TimeForecast time_;
  double now_ = 0;
  std::map<int, double> queues_;  // when each is free
  std::vector<ActiveCollective> collectives_;
};

}  // namespace

double TimeForecast::waiting() const {
  double seconds = 0;
  for (const auto& [group, waited] : exposed) seconds += waited;
  return seconds;
}

TimeForecast time_of(const Timeline& timeline, const Machine& machine) {
  StepClock clock(timeline, machine);
  for (const Timeline::Event& event : timeline.events) std::visit(clock, event);
  return clock.time();
}

}  // namespace meshtrain
