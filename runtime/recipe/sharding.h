#pragma once

#include <optional>
#include <string>

#include "fsdp/options.h"
#include "mesh/layout.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// The layout of the recipe's parameters on the ranks that hold the same part of the model.
struct ShardingChoice {
  ShardingMode mode;
  std::vector<std::string> axes;  ///< axes whose ranks share the units: dp, or dp and cp
  int64_t num_ranks;              ///< number of ranks on these axes
  bool hybrid;                    ///< true: shards are cut over some of these ranks, the others are replicas
  std::optional<int64_t> shard_size =
      {};  ///< number of ranks that share a copy, when hybrid; none: the ranks of a host
};

/// Returns what parallel.fsdp requests, with `auto` decided: no_shard with tp > 1 or one rank, otherwise full_shard;
/// over dp and cp.
ShardingChoice sharding_choice(const Recipe& recipe, const MeshLayout& layout);

/// Returns the word for `mode` in parallel.fsdp.mode: "full_shard".
const char* name(ShardingMode mode);

/// Describes `choice` for logs: "full_shard over dp x cp, 4 ranks", "hybrid_shard over dp, 4 ranks, 2 to a copy".
std::string describe(const ShardingChoice& choice);

/// Throws InputError when the mesh of `choice`, the result of sharding_choice(), does not allow parallel.fsdp.
void check_sharding(const Recipe& recipe, const ShardingChoice& choice);

}  // namespace meshtrain
