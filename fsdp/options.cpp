#include "fsdp/options.h"

#include <algorithm>

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

SumsInFlight sums_in_flight(const FsdpOptions& options) {
  const auto among = [](const Group& group) -> size_t { return group.size() > 1 ? 1 : 0; };
  return {among(options.shards), among(options.replicas),
          std::max(among(options.remaining), among(options.remaining_partial))};
}

bool keeps_full_gradients(const FsdpOptions& options, at::Device device) {
  return !cuts_units(options, device) || options.mode == ShardingMode::ShardOptimizer || options.accumulate_unsharded;
}

}  // namespace meshtrain
