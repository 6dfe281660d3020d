#include "runtime/program/forecast/time_forecast.h"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "mesh/layout.h"

namespace meshtrain {
namespace {

/// The clock of a rank that makes a step.
class StepClock {
 public:
  StepClock(const Timeline& timeline, const Machine& machine) : timeline_(timeline), machine_(machine) {}

  void operator()(const OperatorCall& call) {
    const double each = machine_.seconds(call, timeline_) + machine_.call_seconds;
    const double seconds = static_cast<double>(call.times) * each;
    now_ += seconds;
    part_of(call) += seconds;
  }

  void operator()(const CollectiveCall& call) {
    const double seconds = machine_.seconds(call), beside = seconds * machine_.overlap;
    const bool is_message = call.kind == Collective::Kind::Message;
    const std::string group = is_message ? kPipelineAxis : call.group;
    time_.collectives[group] += seconds;
    // The part that computing cannot run beside holds it up at once.
    time_.exposed[group] += seconds - beside;
    now_ += seconds - beside;
    if (is_message) {
      actions_.message = std::max(actions_.message, beside);
      collectives_.push_back({group, 0, /*is_awaited=*/call.sent_bytes > 0});
      return;
    }
    double& free = queues_[call.queue];
    free = std::max({free, now_, call.after_copy ? copies_.at(*call.after_copy) : 0}) + beside;
    collectives_.push_back({group, free});
  }

  void operator()(const CollectiveWait& wait) {
    ActiveCollective& active = collectives_.at(wait.collective);
    const double end = std::max(active.end, now_) + (active.is_awaited ? 0 : machine_.wait_seconds);
    active.is_awaited = true;
    time_.exposed[active.group] += end - now_;
    now_ = end;
  }

  void operator()(const CopyCall& call) {
    const double seconds = machine_.seconds(call);
    time_.copies += seconds;
    // A copy runs after those before it in its stream, and shares the bus with those of its direction.
    double& free = buses_[call.direction];
    free = std::max({free, now_, call.after ? copies_.at(*call.after) : 0}) + seconds;
    copies_.push_back(free);
  }

  void operator()(const CopyWait& wait) {
    const double end = std::max(copies_.at(wait.copy), now_);
    time_.exposed_copies += end - now_;
    now_ = end;
  }

  void operator()(const ActionBegin& begin) {
    end_action();
    current_ = begin.action;
    begin_ = now_;
    has_actions_ = true;
  }

  ActionSeconds actions() {
    time();
    actions_.after = now_ - begin_;
    return actions_;
  }

  TimeForecast time() {
    for (size_t i = 0; i < copies_.size(); ++i) (*this)(CopyWait{i});
    for (size_t i = 0; i < collectives_.size(); ++i) (*this)(CollectiveWait{i});
    return time_;
  }

 private:
  struct ActiveCollective {
    std::string group;
    double end = 0;
    bool is_awaited = false;
  };

  void end_action() {
    if (!has_actions_) actions_.before = now_;
    if (current_) actions_.actions[*current_] = now_ - begin_;
  }

  double& part_of(const OperatorCall& call) {
    if (call.part != TimelinePart::Gradients) return time_.optimizer;
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
  ActionSeconds actions_;
  std::optional<PipelineAction> current_;
  double begin_ = 0;  // of the current action; of what follows the last
  bool has_actions_ = false;
  std::map<int, double> queues_;  // when each is free
  std::vector<ActiveCollective> collectives_;
  std::map<CopyDirection, double> buses_;  // when each is free
  std::vector<double> copies_;             // when each ends
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

ActionSeconds actions_of(const Timeline& timeline, const Machine& machine) {
  StepClock clock(timeline, machine);
  for (const Timeline::Event& event : timeline.events) std::visit(clock, event);
  return clock.actions();
}

}  // namespace meshtrain
