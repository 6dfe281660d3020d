#pragma once

#include <string>
#include <vector>

#include "fsdp/arena.h"
#include "fsdp/options.h"

namespace meshtrain {

/// The memory of full parameters and full gradients. The table has a rank's bytes when units are cut over n ranks, p of
/// which share a host with windows (Group::window). P: parameters; G: gradients; arena(k): the largest sum of k
/// neighbours, plus the units of the whole step.
///
/// |                                | parameters                | gradients |
/// | NoShard, or n = 1              | P, of this rank alone     | G         |
/// | ShardOptimizer                 | P / p: one copy on a host | G         |
/// | ShardGradOp                    | P / p: one copy on a host | arena(2)  |
/// | FullShard, n ranks of one host | P / n: one copy           | arena(2)  |
/// | FullShard, otherwise           | arena(1 + prefetch)       | arena(2)  |
///
/// With accumulate_unsharded gradients are G; FullShard's arena is P where units are kept until the backward. A copy of
/// a host is common memory: shards of the parameters' own dtype are slices of it, so every rank of the host sees the
/// owners' writes at once, and a gather moves nothing inside the host. Gradients, and an arena of parameters, are this
/// rank's own, read and written in place by the peers' collectives; so are shards of gradients with memory of their
/// own, where they are summed over more ranks. Without windows all of it is ordinary memory, a copy for each rank, and
/// FullShard has its arena. FullShard also has its arena, on any number of hosts, when shards are on disk or in host
/// memory next to a GPU.
///
/// **When an owner may write its shard of common memory.** Peers read a unit's parameters until their backward of it
/// ends. A rank issues the reduction of the lowest trainable unit last, when the gradients of all units are final: its
/// backward uses no parameters after that, in any mode, because the units below have no backward. That reduction ends
/// when every rank of the shard group has begun it. Therefore, when the last end_backward() of a step returns, every
/// peer has read parameters for the last time in this step, and shards may be changed until the next gather begins. A
/// gather ends when every rank has begun it, and so has written its shard. Shards of another dtype are written to the
/// slice together with their change (ShardChange), or when the first gather after it begins. visit_values() ends with a
/// barrier, for a change without a step. A write at any other time would change parameters that a peer computes with.
///
/// **When memory of gradients may be lent to another unit.** A reduction ends when the peers have read their parts; the
/// rank waits for that before it lends the memory again, or writes it in the next step.
struct UnitMemory {
  /// Allocates the memory and binds the units to it; the values of their parameters are in their shards then.
  /// Collective over the groups of `options`.
  UnitMemory(std::vector<Unit>& units, const FsdpOptions& options);

  Arena parameters;
  Arena gradients;
  Arena shard_gradients;
};

/// Returns "parameters 12.3 MiB, one copy on each host; gradients 24.6 MiB a rank, in memory shared with its host".
std::string describe(const UnitMemory& memory);

}  // namespace meshtrain
