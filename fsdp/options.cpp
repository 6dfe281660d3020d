#include "fsdp/options.h"

namespace meshtrain {

FsdpOptions over(const ReplicaMap& replicas, FsdpOptions options) {
  options.shards = replicas.shards();
  options.replicas = replicas.full_replicas();
  options.remaining = replicas.remaining();
  options.remaining_partial = replicas.remaining_partial();
  options.summed_over = replicas.tokens();
  return options;
}

bool cuts_units(const FsdpOptions& options, at::Device device) {
  const bool apart = options.memory.is_on_disk() || options.memory.leaves(device);
  return options.mode != ShardingMode::NoShard && (options.shards.size() > 1 || apart);
}

bool gathers_beside_reductions(ShardingMode mode) {
  return mode == ShardingMode::FullShard;
}

bool keeps_full_gradients(const FsdpOptions& options, at::Device device) {
  return !cuts_units(options, device) || options.mode == ShardingMode::ShardOptimizer || options.accumulate_unsharded;
}

}  // namespace meshtrain
