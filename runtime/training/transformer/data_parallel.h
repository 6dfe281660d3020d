#pragma once

#include "runtime/training/trainer/pipeline_mesh.h"
#include "runtime/training/transformer/model_fsdp.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

/// Returns the maps from ranks to the parts of the model that they hold and own. Experts that are cut over ep are
/// sharded over edp, in the mode of all other parameters. Every rank must call it: collective where it makes groups.
/// Throws InputError when hybrid_shard has no shard_size and the ranks of a host cannot replace it.
ModelReplicas map_replicas(const ShardingChoice& sharding, const DeviceMesh& mesh);
/// Returns the maps of the ranks that hold this rank's stages. Shards have the same size on all stages.
ModelReplicas map_replicas(const ShardingChoice& sharding, const PipelineMesh& mesh);

/// Returns the FSDP options of a model over the ranks of `replicas`. Shards are in a file of this rank with
/// Offload::Disk, and in host memory with Offload::Host; without offload_parameters only the optimizer's state is. Not
/// collective.
ModelFsdp fsdp_options(const TransformerOptions& options, const ModelReplicas& replicas);

}  // namespace meshtrain
