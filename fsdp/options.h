#pragma once

#include "fsdp/flat_buffer.h"
#include "mesh/replica_map.h"

namespace meshtrain {

/// The parts of the training state that are cut over the ranks of the shard group. The optimizer's work is cut in every
/// mode but NoShard (Rajbhandari et al., "ZeRO", 2020; Zhao et al., "PyTorch FSDP", 2023).
///
/// Bytes that a rank sends in a step of m micro-batches, P parameters, n shards, times (n - 1) / n:
///   NoShard         2 P of gradients, over the replicas
///   ShardOptimizer  P of gradients and P of parameters
///   ShardGradOp     m P of gradients and P of parameters
///   FullShard       m P of gradients and m (2 P - P_last) of parameters: the last unit is kept from forward to
///                   backward. A unit of the whole step is gathered once a step
/// r replicas of a shard sum its gradient once a step: 2 P / n, times (r - 1) / r. accumulate_unsharded sends P of
/// gradients instead of m P, and FullShard without reshard_after_forward m P of parameters.
///
/// P of gradients counts trained parameters alone. So does P of parameters under ShardOptimizer and ShardGradOp, which
/// do not gather frozen ones again. FullShard gathers a unit for the backward only when the unit, or one before it, has
/// a trained parameter.
enum class ShardingMode { NoShard, ShardOptimizer, ShardGradOp, FullShard };

struct FsdpOptions {
  ShardingMode mode = ShardingMode::NoShard;
  Group shards = {};     ///< ranks over which units are cut; NoShard: this rank alone
  Group replicas = {};   ///< ranks that keep the same shard, over which its gradient is summed. HYBRID_SHARD: FullShard
                         ///< and several replicas
  Group remaining = {};  ///< ranks over which the reduced shards of gradients must still be summed
  Group remaining_partial = {};  ///< the same for gradients that are partial over an axis (Parameter::partial_over):
                                 ///< with the ranks of that axis
  Group summed_over = {};  ///< ranks of shards, replicas and remaining together: those of a host keep gradients in
                           ///< windows that they share. One rank: those of shards, or of replicas
  bool reshard_after_forward = true;  ///< FullShard: false keeps a unit gathered from its forward to its backward
  bool accumulate_unsharded = false;  ///< ShardGradOp, FullShard: adds up full gradients of a step's micro-batches
                                      ///< and reduces them once, at the cost of their memory
  std::optional<at::ScalarType> shard_dtype = {};   ///< of shards, frozen ones too, which then keep values that the
                                                    ///< parameters' dtype would round; none: the parameters'. Mixed
                                                    ///< precision: fp32 for parameters in bf16
  std::optional<at::ScalarType> frozen_dtype = {};  ///< of frozen shards instead of shard_dtype, but not less than the
                                                    ///< parameters'; none: shard_dtype
  std::optional<at::ScalarType> reduce_dtype = {};  ///< of gradients while they are added up and reduced over shards,
                                                    ///< and under NoShard over replicas; none: the parameters'
  int64_t prefetch = 1;     ///< number of units gathered ahead of the one that computes, at least 0
  ShardMemory memory = {};  ///< of shards and their gradients that are not slices of full tensors. When it is on disk,
                            ///< or on the host of a GPU, FullShard gathers from it on one rank too
  std::optional<ShardMemory> state_memory = {};  ///< of the optimizer's state; none: `memory`. It must leave the device
                                                 ///< of the units when `memory` does
};

/// Returns `options` with its groups taken from `replicas`.
FsdpOptions over(const ReplicaMap& replicas, FsdpOptions options);

/// Returns true when units on `device` are cut over several ranks, or over one rank whose shards are elsewhere.
bool cuts_units(const FsdpOptions& options, at::Device device);

/// Returns true when parameters are gathered while gradients are reduced, in the backward: by a second queue of
/// `shards`, so that a gather passes a reduction that was issued before it (Group::second_queue()).
bool gathers_beside_reductions(ShardingMode mode);

/// The number of units, for each kind of sum of gradients, whose sums run while the next unit's gradients are reduced:
/// 1, or 0 where there is no other rank to sum with.
struct SumsInFlight {
  size_t over_shards, over_replicas, remaining;
};
SumsInFlight sums_in_flight(const FsdpOptions& options);

/// Returns true when gradients on `device` have memory for a complete step, not only for the backward of their unit.
bool keeps_full_gradients(const FsdpOptions& options, at::Device device);

}  // namespace meshtrain
