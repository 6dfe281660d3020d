#pragma once

#include <string>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/group.h"

namespace meshtrain::testing {

/// The hosts of the world's ranks. Found: as MPI finds them, in most runs one. The others are simulated: Two: the first
/// half on one host; InTurn: two hosts in turn; Unequal: 3 of 8 ranks on one and 5 on the other; Each: one host per
/// rank; Refused: no space for windows.
enum class Hosts { Found, Two, InTurn, Unequal, Each, Refused };

std::string name_of(Hosts hosts);

/// Returns the world's ranks on such hosts. Made once for each kind, because communicators are few. Collective the
/// first time.
const Group& world_on(Hosts hosts);

/// Returns a new group of the world's ranks. Collective.
Group world_over(const MpiOptions& options);

}  // namespace meshtrain::testing
