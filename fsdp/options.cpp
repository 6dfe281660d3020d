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
  return options.mode != ShardingMode::NoShard && (options.shards.size() > 1 || options.memory.is_apart_from(device));
}

bool gathers_beside_reductions(ShardingMode mode) {
  return mode == ShardingMode::FullShard;
}

bool keeps_full_gradients(const FsdpOptions& options, at::Device device) {
  return !cuts_units(options, device) || options.mode == ShardingMode::ShardOptimizer || options.accumulate_unsharded;
}

}  // namespace meshtrain
