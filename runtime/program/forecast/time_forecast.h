#pragma once

#include <map>
#include <string>

#include "runtime/program/forecast/machine.h"
#include "runtime/program/forecast/timeline.h"

namespace meshtrain {

/// The seconds of a step by what takes them, of one rank.
struct TimeForecast {
  double products = 0;
  double attention = 0;
  double elementwise = 0;
  double optimizer = 0;                        ///< computing of the update
  double imbalance = 0;                        ///< waiting for ranks that compute more: packed documents
  double bubble = 0;                           ///< waiting in the pipeline, for other stages
  double copies = 0;                           ///< of all copies between GPU and host
  double exposed_copies = 0;                   ///< of them those that computing waited for
  std::map<std::string, double> collectives;   ///< of all collectives, by group
  std::map<std::string, double> exposed = {};  ///< of them those that computing waited for

  double computing() const { return products + attention + elementwise + optimizer; }
  double waiting() const;
  double total() const { return computing() + imbalance + bubble + waiting() + exposed_copies; }
};

/// The seconds of a rank's actions in a step of its pipeline, without waiting for other stages.
struct ActionSeconds {
  double before = 0;  ///< from the beginning of the step to the first action
  std::map<PipelineAction, double> actions = {};
  double after = 0;    ///< from the end of the last action to that of the step
  double message = 0;  ///< of the longest message, in which the rank computes on
};

/// Returns the time of a step on a machine: operators follow one another, collectives of a queue too, copies in one
/// direction too, and computing waits where the step waits. What the machine has no rate of takes no time
/// (Machine::times_offload()). Other ranks are taken to start a collective when this one does.
TimeForecast time_of(const Timeline& timeline, const Machine& machine);

/// Returns the seconds of the timeline's actions. Each has the messages that the rank starts after it; messages arrive
/// before they are awaited.
ActionSeconds actions_of(const Timeline& timeline, const Machine& machine);

}  // namespace meshtrain
