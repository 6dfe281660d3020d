#pragma once

#include <functional>

#include "mesh/group.h"

namespace meshtrain {

/// Connects the ranks that a launcher started (mpirun, srun --mpi=pmix), or this process alone, without MPI. Every
/// rank must call it. A program that calls MPI_Init_thread itself does so before, with MPI_THREAD_SERIALIZED or more,
/// and may call MPI_Finalize when it has ended the use of all groups. Throws InputError as mpi_backend() does.
Group connect_ranks();

/// Calls `body` with the connected ranks and returns its result, for main(). Reports an exception on stderr in one line
/// and returns 2 for an InputError, else 1. When a rank fails alone, its line names the rank, and the job ends.
int run_on_ranks(const std::function<int(const Group& ranks)>& body);

}  // namespace meshtrain
