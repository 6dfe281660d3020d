#pragma once

#include <string>

#include "fsdp/options.h"
#include "mesh/layout.h"
#include "runtime/config/recipe.h"

namespace meshtrain {

/// How the recipe's parameters are cut over the ranks that hold the same part of the model.
struct ShardingChoice {
  ShardingMode mode;
  std::vector<std::string> axes;  ///< dp, or dp and cp: over whose ranks units are cut
  int64_t num_ranks;              ///< of these axes
  bool hybrid;                    ///< cut over fsdp.shard_size of these ranks, the rest are replicas
};

/// What parallel.fsdp asks for, `auto` settled: no_shard with tp > 1 or one rank, else full_shard; over dp and cp.
ShardingChoice sharding_choice(const Recipe& recipe, const MeshLayout& layout);

/// As parallel.fsdp.mode has it: "full_shard".
const char* name(ShardingMode mode);

/// "full_shard over dp x cp, 4 ranks": for logs.
std::string describe(const ShardingChoice& choice);

/// Throws InputError for a parallel.fsdp that `layout` cannot have.
void check_sharding(const Recipe& recipe, const MeshLayout& layout);

}  // namespace meshtrain
