#pragma once

#include "mesh/group.h"

namespace meshtrain {

/// Connects the ranks that a launcher started (mpirun, srun --mpi=pmix), or this process alone, without MPI. Every
/// rank must call it. Throws InputError as mpi_backend() does.
Group connect_ranks();

}  // namespace meshtrain
