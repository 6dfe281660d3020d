#pragma once

#include "mesh/group.h"

namespace meshtrain {

/// Connects the ranks that a launcher started (mpirun, srun --mpi=pmix), or this process alone, without MPI. Every
/// rank must call it. A program that calls MPI_Init_thread itself does so before, with MPI_THREAD_SERIALIZED or more,
/// and may call MPI_Finalize when it has ended the use of all groups. Throws InputError as mpi_backend() does.
Group connect_ranks();

}  // namespace meshtrain
