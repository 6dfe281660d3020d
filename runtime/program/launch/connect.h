#pragma once

#include <string>

#include "mesh/group.h"

namespace meshtrain {

/// Connects the ranks that this process was started with: those of a launcher, or itself alone, without MPI. Also gives
/// this rank its share of the host's cores (set_threads()). Throws InputError when a launcher announces several ranks
/// that cannot see each other: a foreign mpirun.
Group connect_world();

/// Returns how many threads connect_world() gave the ranks, and why, for logs: the same on all.
const std::string& threads_taken();

}  // namespace meshtrain
