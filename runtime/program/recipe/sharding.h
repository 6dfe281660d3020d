#pragma once

#include <string>

#include "mesh/layout.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/training/transformer/transformer_options.h"

namespace meshtrain {

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
