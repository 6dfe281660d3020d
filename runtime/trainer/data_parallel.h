#pragma once

#include "fsdp/options.h"
#include "mesh/replica_map.h"
#include "runtime/recipe/run_plan.h"

namespace meshtrain {

/// Returns who holds what of the model on `mesh`. Every rank must call it: collective under hybrid_shard, whose groups
/// are made here. Throws InputError when hybrid_shard names no shard_size and the ranks of a host cannot take its
/// place.
ReplicaMap map_replicas(const ShardingChoice& sharding, const DeviceMesh& mesh);

/// Returns the options of FSDP for `plan`, that of `recipe`, over the ranks of `replicas`, without memory and
/// on_reduced. No collective.
FsdpOptions fsdp_options(const Recipe& recipe, const RunPlan& plan, const ReplicaMap& replicas);

}  // namespace meshtrain
