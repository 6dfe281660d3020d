#include "tools/meshtrain/launcher.h"

#include "mesh/backends/mpi/launcher.h"
#include "mesh/base/error.h"

namespace meshtrain {

void refuse_several_ranks(const std::string& command) {
  if (announced_ranks() == 1) return;
  throw InputError(command + " runs in one process, but the launcher started " + std::to_string(announced_ranks()) +
                   ": run it without mpirun or srun");
}

}  // namespace meshtrain
