#pragma once

#include <string>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/group.h"

namespace meshtrain::testing {

/// As MPI finds them, which is one in most runs; or the world's ranks taken to be on two, the first half on one of
/// them, or in turn, or 3 of 8 on one and 5 on the other; or on one each; and with no space for windows.
enum class Hosts { Found, Two, InTurn, Unequal, Each, Refused };

std::string name_of(Hosts hosts);

/// The world's ranks on such hosts; made once for each, as communicators are few. Collective the first time.
const Group& world_on(Hosts hosts);

/// The world's ranks, in a group of its own. Collective.
Group world_over(const MpiOptions& options);

}  // namespace meshtrain::testing
