#pragma once

#include "fsdp/options.h"
#include "mesh/device_mesh.h"
#include "runtime/optimizer/keepers.h"
#include "runtime/recipe/run_plan.h"

namespace meshtrain {

/// Who shares the model with this rank, and who sums which gradients (design rule 2).
struct DataParallel {
  FsdpOptions options;  ///< without on_reduced
  Group sums;           ///< what Fsdp has reduced is summed over these: cp, unless units are cut over it; and replicas
                        ///< of a hybrid, in one all-reduce
  Group partial_sums;   ///< and gradients that are partial over tp over these
  Keepers keepers;
  std::vector<std::string> cut_axes;  ///< over whose ranks units are cut
};

/// What `plan`, that of `recipe`, asks for on `mesh`. Collective under hybrid_shard, whose groups are made here. Throws InputError
/// when hybrid_shard names no shard_size and the ranks of a host cannot take its place.
DataParallel make_data_parallel(const Recipe& recipe, const RunPlan& plan, const DeviceMesh& mesh);

}  // namespace meshtrain
