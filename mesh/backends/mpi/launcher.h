#pragma once

#include "mesh/base/error.h"

namespace meshtrain {

/// The error of a launch whose tasks MPI does not connect: each task would train alone. All tasks report it, because
/// each may have its own host and log; other input errors are found by all ranks and reported by one.
class LaunchError : public InputError {
 public:
  /// Describes this task: the number of tasks announced, by which variable, and how to start them instead.
  LaunchError();
};

/// True when a launcher's environment announces that this process is one of several.
bool launched_by_mpi();

/// Returns how many tasks the launcher's environment announces: mpirun of any MPI library, srun, flux run, jsrun, PALS'
/// mpiexec or torchrun; 1 when it announces none. An allocation is not a launch: the script of sbatch and the shell of
/// salloc are one process, whatever SLURM_NTASKS says. If a launcher gives a task only its number, it announces that
/// task and those before it.
int announced_ranks();

/// True when srun announces several tasks and has given this one no way to meet the others, neither PMIx nor PMI-2.
bool is_srun_without_pmi();

/// True when the launcher's environment announces rank 0, or no rank: the process that reports what all ranks find
/// alike before they communicate.
bool is_announced_first();

}  // namespace meshtrain
