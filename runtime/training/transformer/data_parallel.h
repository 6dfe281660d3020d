#pragma once

#include "runtime/training/trainer/pipeline_mesh.h"
#include "runtime/training/transformer/model_fsdp.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the maps from ranks to the parts of the model that they hold and own. Experts that are cut over ep have
/// their shards over edp, in the mode of all others. Every rank must call it: collective where it makes groups. Throws
/// InputError when hybrid_shard has no shard_size and the ranks of a host cannot replace it.
ModelReplicas map_replicas(const ShardingChoice& sharding, const DeviceMesh& mesh);
/// Returns the maps of the ranks that hold this rank's stages. Shards have the same size on all stages.
ModelReplicas map_replicas(const ShardingChoice& sharding, const PipelineMesh& mesh);

/// Returns the FSDP options of a model over the ranks of `replicas`. With Offload::Disk shards lie in a file of this
/// rank, with Offload::Host in the host's memory; without offload_parameters only the optimizer's state. Not
/// collective.
ModelFsdp fsdp_options(const TransformerOptions& options, const ModelReplicas& replicas);

}  // namespace meshtrain
