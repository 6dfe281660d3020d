#pragma once

#include <memory>

#include "mesh/backend.h"
#include "mesh/traffic.h"

namespace meshtrain {

/// Decorates the backend of a group: every collective is entered into `ledger`, under the name of its group, before it
/// is issued. So are those of groups that are made of it, except groups of one rank. A backend has one ledger: `ledger`
/// replaces that of an `inner` that is instrumented already.
std::shared_ptr<Backend> instrument(std::shared_ptr<Backend> inner, std::shared_ptr<TrafficLedger> ledger);

}  // namespace meshtrain
