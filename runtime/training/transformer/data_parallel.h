#pragma once

#include "mesh/replica_map.h"
#include "runtime/training/trainer/pipeline_mesh.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the map from ranks to the parts of the model that they hold and own. Every rank must call it: under
/// hybrid_shard it is collective, because it makes groups. Throws InputError when hybrid_shard has no shard_size and
/// the ranks of a host cannot replace it.
ReplicaMap map_replicas(const ShardingChoice& sharding, const DeviceMesh& mesh);
/// Returns the map of the ranks that hold this rank's stages. Shards have the same size on all stages.
ReplicaMap map_replicas(const ShardingChoice& sharding, const PipelineMesh& mesh);

/// Returns the FSDP options of a model over the ranks of `replicas`. With Offload::Disk shards lie in a file of this
/// rank, with Offload::Host in the host's memory; without offload_parameters only the optimizer's state. Not
/// collective.
FsdpOptions fsdp_options(const TransformerOptions& options, const ReplicaMap& replicas);

}  // namespace meshtrain
