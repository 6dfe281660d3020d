#include "tools/meshtrain/launcher.h"

#include <cstdlib>

#include "mesh/backends/mpi/mpi.h"
#include "mesh/error.h"

namespace meshtrain {

bool is_announced_first() {
  for (const char* variable :
       {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(variable)) return std::string(rank) == "0";
  }
  return true;
}

void refuse_several_ranks(const std::string& command) {
  if (announced_ranks() == 1) return;
  throw InputError(command + " is the work of one process, and the launcher started " +
                   std::to_string(announced_ranks()) + ": run it without mpirun or srun");
}

}  // namespace meshtrain
