#pragma once

#include <string>

#include "mesh/group.h"

namespace meshtrain::testing {

/// `world` with a fault: sums made for `purpose` are left out, on every rank alike and in every group split from it.
/// To see that a check notices.
Group without_sums(const Group& world, const std::string& purpose);

}  // namespace meshtrain::testing
