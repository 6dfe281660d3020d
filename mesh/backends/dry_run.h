#pragma once

#include <memory>

#include "mesh/backend.h"

namespace meshtrain {

/// Returns a rank of a world without other ranks: collectives take tensors of any device, the Meta device above all,
/// and move nothing.
std::shared_ptr<Backend> dry_run_backend(int rank, int size);

}  // namespace meshtrain
