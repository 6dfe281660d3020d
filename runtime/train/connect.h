#pragma once

#include "mesh/group.h"

namespace meshtrain {

/// The ranks that this process was started with: those of a launcher, or itself alone, without MPI. Also divides the
/// host's cores among its ranks (OMP_NUM_THREADS wins when it is set). Throws InputError when a launcher announces
/// several ranks that cannot see each other: a foreign mpirun.
Group connect_world();

/// Ranks on this host, as Open MPI or Slurm announce them; all of them when neither does.
int ranks_on_this_host(int num_ranks);

}  // namespace meshtrain
