#pragma once

#include <memory>
#include <string>

#include "mesh/backend.h"
#include "mesh/traffic.h"

namespace meshtrain {

/// Decorates the backend of one group: every collective is entered into `ledger` under the group's name before it
/// is issued. Whatever has to see each collective belongs here. split() and second_queue() give plain backends, for
/// the new group's owner to decorate under its name.
std::shared_ptr<Backend> instrument(std::shared_ptr<Backend> inner, std::string group,
                                    std::shared_ptr<TrafficLedger> ledger);

/// The ledger of a backend that instrument() made; nullptr for any other.
std::shared_ptr<TrafficLedger> ledger_of(const Backend& backend);

}  // namespace meshtrain
