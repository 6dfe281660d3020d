#include "runtime/training/transformer/data_parallel.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "mesh/base/error.h"
#include "mesh/host_map.h"

namespace meshtrain {
namespace {

/// Returns how many neighbours among the ranks of `axes` share a host. Throws InputError unless the number is the same
/// everywhere. The same result on every rank.
int64_t ranks_of_a_host(const MeshLayout& layout, const std::vector<std::string>& axes, const HostMap& hosts) {
  int64_t least = layout.size(), most = 1, common = 0;  // `common`: the largest number that divides all
  bool together = true;                                 // the ranks of a host are neighbours
  for (int64_t first = 0; first < layout.size(); ++first) {
    if (std::any_of(axes.begin(), axes.end(), [&](const auto& axis) { return layout.coordinate(first, axis) != 0; })) {
      continue;
    }
    const std::vector<int64_t> ranks = layout.group(axes, first);
    std::set<int> seen;
    for (size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
      const int host = hosts.host_of(ranks[begin]);
      while (end < ranks.size() && hosts.host_of(ranks[end]) == host) ++end;
      const auto neighbours = static_cast<int64_t>(end - begin);
      least = std::min(least, neighbours);
      most = std::max(most, neighbours);
      common = std::gcd(common, neighbours);
      together = seen.insert(host).second && together;
    }
  }
  if (together && least == most) return most;
  std::string problem =
      "ranks of several hosts alternate here: start neighbours on one host (mpirun --map-by slot, "
      "srun --distribution=block)";
  if (together) {
    problem = "which are " + std::to_string(least) + " on one and " + std::to_string(most) +
              " on another: start the same number on each";
  }
  const std::string fitting = common > 1
                                  ? ": " + std::to_string(common) + ", the largest whose copies have one host each"
                                  : "; some copies will then span several hosts";
  throw InputError("parallel.fsdp", "hybrid_shard cuts over the ranks of a host, " +
                                        std::string(together ? "" : "but ") + problem +
                                        ", or set parallel.fsdp.shard_size" + fitting);
}

/// Returns the number of shards of each flat buffer; none: buffers are full.
std::optional<int64_t> num_shards(const ShardingChoice& sharding, const DeviceMesh& complete) {
  if (sharding.mode == ShardingMode::NoShard) return std::nullopt;
  if (!sharding.hybrid) return sharding.num_ranks;
  if (sharding.shard_size) return sharding.shard_size;
  return ranks_of_a_host(complete.layout(), sharding.axes, HostMap::of(complete.world()));
}

/// Returns the number of shards of the experts' buffers when the others have `dense`: the ranks that hold a copy of the
/// model hold a copy of its experts. Where ep does not divide these ranks, experts are cut over ep alone.
std::optional<int64_t> num_expert_shards(const ShardingChoice& sharding, std::optional<int64_t> dense,
                                         const MeshLayout& stage) {
  if (!dense) return std::nullopt;
  const int64_t ranks_of_a_copy = stage.size() / (sharding.num_ranks / *dense);
  return ranks_of_a_copy % stage.ep() == 0 ? ranks_of_a_copy / stage.ep() : 1;
}

ModelReplicas map_replicas(const ShardingChoice& sharding, const DeviceMesh& complete, const DeviceMesh& stage) {
  const std::optional<int64_t> shards = num_shards(sharding, complete);
  ModelReplicas replicas{ReplicaMap(stage, sharding.axes, shards), {}};
  if (stage.layout().ep() == 1) return replicas;
  replicas.experts.emplace(stage.experts(), std::vector<std::string>{kExpertDataAxis},
                           num_expert_shards(sharding, shards, stage.layout()),
                           ReplicaRoles{.cut = kExpertAxis, .tokens = {kExpertDataAxis}});
  return replicas;
}

FsdpOptions dense_options(const TransformerOptions& options, const ReplicaMap& replicas) {
  FsdpOptions fsdp = over(replicas, options.fsdp);
  fsdp.mode = options.sharding.mode;
  if (options.precision.mixed) fsdp.shard_dtype = at::kFloat;
  // The base of adapters is never updated: nothing is lost when it is rounded once, to the dtype of the layers.
  if (options.shape.adapter) fsdp.frozen_dtype = options.precision.compute;
  fsdp.reduce_dtype = options.precision.reduce;
  if (options.offload == Offload::Disk) fsdp.state_memory = ShardMemory::on_disk(options.offload_folder);
  if (options.offload == Offload::Host) fsdp.state_memory = ShardMemory::on_host();
  if (fsdp.state_memory && options.offload_parameters) fsdp.memory = *fsdp.state_memory;
  return fsdp;
}

}  // namespace

ModelReplicas map_replicas(const ShardingChoice& sharding, const DeviceMesh& mesh) {
  return map_replicas(sharding, mesh, mesh);
}

ModelReplicas map_replicas(const ShardingChoice& sharding, const PipelineMesh& mesh) {
  return map_replicas(sharding, mesh.complete(), mesh.stage());
}

ModelFsdp fsdp_options(const TransformerOptions& options, const ModelReplicas& replicas) {
  ModelFsdp fsdp{dense_options(options, replicas.dense)};
  if (!replicas.experts) return fsdp;
  fsdp.experts = over(*replicas.experts, fsdp.dense);  // in the same memory
  fsdp.ep = replicas.experts->parts();
  return fsdp;
}

}  // namespace meshtrain
