#pragma once

#include <optional>
#include <string>

#include "fsdp/options.h"
#include "mesh/layout.h"
#include "runtime/recipe/recipe.h"

namespace meshtrain {

/// How the recipe's parameters are cut over the ranks that hold the same part of the model.
struct ShardingChoice {
  ShardingMode mode;
  std::vector<std::string> axes;           ///< dp, or dp and cp: over whose ranks units are cut
  int64_t num_ranks;                       ///< of these axes
  bool hybrid;                             ///< cut over some of these ranks, the rest are replicas
  std::optional<int64_t> shard_size = {};  ///< how many, when hybrid; none: those of a host
};

/// What parallel.fsdp asks for, `auto` settled: no_shard with tp > 1 or one rank, else full_shard; over dp and cp.
ShardingChoice sharding_choice(const Recipe& recipe, const MeshLayout& layout);

/// As parallel.fsdp.mode has it: "full_shard".
const char* name(ShardingMode mode);

/// "full_shard over dp x cp, 4 ranks", "hybrid_shard over dp, 4 ranks, 2 to a copy": for logs.
std::string describe(const ShardingChoice& choice);

/// Throws InputError for a parallel.fsdp that the mesh of `choice`, its sharding_choice(), cannot have.
void check_sharding(const Recipe& recipe, const ShardingChoice& choice);

}  // namespace meshtrain
