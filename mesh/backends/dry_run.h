#pragma once

#include <memory>

#include "mesh/backend.h"
#include "mesh/device/memory.h"

namespace meshtrain {

/// The hosts of a simulated world.
struct DryRunHosts {
  int ranks_per_host = 1;           ///< ranks r of equal r / ranks_per_host are on one host
  WindowMemory* windows = nullptr;  ///< counts the windows that this rank would have under MPI, and outlives the
                                    ///< backend and its tensors; null: there are none, as on GPUs
};

/// Returns the backend of one rank of a simulated world. Collectives take tensors of any device, usually the Meta
/// device, and move nothing. A collective keeps its tensors until the rank waits for it. A message keeps none, as if
/// its receiver were ready. Windows are tensors of the Meta device.
std::shared_ptr<Backend> dry_run_backend(int rank, int size, const DryRunHosts& hosts = {});

}  // namespace meshtrain
