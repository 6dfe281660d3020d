#pragma once

#include <string>
#include <vector>

#include "fsdp/arena.h"
#include "fsdp/options.h"

namespace meshtrain {

/// Where whole parameters and whole gradients live. In bytes of a rank, of units cut over n ranks, p of them on a host
/// that gives windows (Group::window); P parameters, G gradients; arena(k): the largest sum of k neighbours, units of
/// the whole step besides:
///
/// |                                | parameters                | gradients |
/// | NoShard, or n = 1              | P, of this rank alone     | G         |
/// | ShardOptimizer                 | P / p: one copy on a host | G         |
/// | ShardGradOp                    | P / p: one copy on a host | arena(2)  |
/// | FullShard, n ranks of one host | P / n: one copy           | arena(2)  |
/// | FullShard, otherwise           | arena(1 + prefetch)       | arena(2)  |
///
/// With accumulate_unsharded gradients are G; FullShard's arena is P where units are kept to the backward. A copy of a
/// host is common memory: shards of the parameters' own dtype are slices of it, so what their owners write is
/// everywhere at once, and a gather moves nothing inside the host. Gradients, and an arena of parameters, are this
/// rank's own, read and written in place by the peers' collectives; so are the shards of gradients that are kept apart,
/// where they are summed over more ranks. Without windows it is all ordinary memory, a copy each, and FullShard has its
/// arena; with shards on disk it has it too, wherever its ranks are.
///
/// **When an owner may write its shard of common memory.** Peers read a unit's parameters until their backward is
/// through with it. A rank issues the reduction of the lowest trainable unit last of all, when the gradients of that
/// and of all others are final: its backward then computes with no parameters any more, in whatever mode, since what
/// lies below that unit has no backward. That reduction is done when every rank of the shard group has begun it.
/// Therefore: when the last end_backward() of a step returns, every peer has looked at parameters for the last time in
/// this step, and shards may be changed until the next gather is begun. A gather is done when every rank has begun it,
/// thus has written its shard. Shards of another dtype are written to the slice with them (ShardChange), or when the
/// first gather after a change begins. visit_values() ends with a barrier, for a change without a step.
///
/// **When memory of gradients may be another unit's.** A reduction is done when the peers have read their parts, which
/// is waited for before the memory is lent again, or written by the next step.
struct UnitMemory {
  /// Collective over the groups of `options`. Units have their storage from here on; what their parameters had is in
  /// their shards.
  UnitMemory(std::vector<Unit>& units, const FsdpOptions& options);

  Arena parameters;
  Arena gradients;
  Arena shard_gradients;
};

/// "parameters 12.3 MiB, one copy on each host; gradients 24.6 MiB a rank, in memory shared with its host".
std::string describe(const UnitMemory& memory);

}  // namespace meshtrain
