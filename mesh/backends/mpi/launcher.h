#pragma once

#include "mesh/base/error.h"

namespace meshtrain {

/// The tasks of a launch that MPI does not see: each of them would train alone. Unlike other input errors, which all
/// ranks find alike and one reports, every task reports this one, since each may be on a host and in a log of its own.
class LaunchError : public InputError {
 public:
  /// Describes this task: the number of tasks announced, by which variable, and how to start them instead.
  LaunchError();
};

/// True when a launcher's environment announces that this process is one of several.
bool launched_by_mpi();

/// Returns how many tasks the launcher's environment announces: mpirun of any MPI library, srun, flux run, jsrun, PALS'
/// mpiexec or torchrun; 1 when it announces none. An allocation is no launch: the script of sbatch and the shell of
/// salloc are one process, whatever SLURM_NTASKS says. A launcher that tells a task its number alone announces that
/// task and those before it.
int announced_ranks();

/// True when srun announces several tasks and has given this one no way to meet the others, neither PMIx nor PMI-2.
bool is_srun_without_pmi();

/// True when the launcher's environment announces rank 0, or no rank: the process that reports what all ranks find
/// alike before they communicate.
bool is_announced_first();

}  // namespace meshtrain
