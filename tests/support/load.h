#pragma once

#include <chrono>

namespace meshtrain::testing {

/// Returns the time in which this machine, as busy as it was over the last minute, does what takes at most `idle` on an
/// idle one: `idle` times the processes that want a core, for each core; at least `idle`.
std::chrono::duration<double> within(std::chrono::duration<double> idle);

}  // namespace meshtrain::testing
