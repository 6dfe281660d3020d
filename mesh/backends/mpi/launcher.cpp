#include <algorithm>
#include <cstdlib>
#include <string>

#include "mesh/backends/mpi/mpi.h"

namespace meshtrain {
namespace {

/// Returns a number in the environment; 0 without one.
int number(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? static_cast<int>(std::strtol(text, nullptr, 10)) : 0;
}

}  // namespace

int announced_ranks() {
  // The innermost launcher speaks first: an mpirun inside a Slurm allocation starts ranks of its own.
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS"}) {
    if (std::getenv(size)) return std::max(number(size), 1);
  }
  // SLURM_NTASKS is also set in a batch script, which is one process. SLURM_STEP_NUM_TASKS is srun's.
  if (std::getenv("SLURM_PROCID")) return std::max(number("SLURM_STEP_NUM_TASKS"), 1);
  return 1;
}

bool launched_by_mpi() {
  // PMIx alone tells a process its rank, and only MPI_Init the number of ranks.
  const bool size_unknown =
      std::getenv("PMIX_RANK") && !std::getenv("OMPI_COMM_WORLD_SIZE") && !std::getenv("SLURM_STEP_NUM_TASKS");
  return announced_ranks() > 1 || size_unknown;
}

bool is_announced_first() {
  for (const char* variable :
       {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(variable)) return std::string(rank) == "0";
  }
  return true;
}

}  // namespace meshtrain
