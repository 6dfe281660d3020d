#pragma once

#include <memory>

#include "mesh/backend.h"
#include "mesh/traffic.h"

namespace meshtrain {

/// Decorates the backend of a group: every collective is entered into `ledger`, under the name of its group, before it
/// is issued. So are those of groups that are made of it, but for groups of one rank. A backend has one ledger: that of
/// an `inner` which is instrumented already is replaced.
std::shared_ptr<Backend> instrument(std::shared_ptr<Backend> inner, std::shared_ptr<TrafficLedger> ledger);

}  // namespace meshtrain
