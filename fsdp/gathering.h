#pragma once

#include <optional>
#include <vector>

#include "fsdp/shard_change.h"
#include "fsdp/shard_transfer.h"
#include "fsdp/unit_memory.h"

namespace meshtrain {

/// Gathers of full parameters: prefetched ahead of the unit that computes, evicted after it.
class Gathering {
 public:
  /// `shards`: the ranks of `options.shards`, with the queue for gathers. `memory`: the memory of full parameters.
  Gathering(std::vector<Unit>& units, const FsdpOptions& options, const Group& shards, const Arena& memory);

  /// Returns when the unit's parameters may be used.
  void before_forward(size_t unit);
  /// `in_backward`: the unit will have a backward.
  void after_forward(size_t unit, bool in_backward);
  /// Notes that the unit will have a backward, which after_forward() did not know.
  void expect_backward(size_t unit);
  /// Returns when the unit's parameters may be used. Evicts those of the units after it.
  void before_backward(size_t unit);
  /// `last`: the last one of the step.
  void end_backward(bool last);

  /// Makes every unit be gathered anew for its next use, although its parameters are current: a step that is recorded
  /// must hold its gathers.
  void forget_gathered();

  /// Marks gathered parameters as stale: every rank has changed its shards.
  void shards_changed(const ShardChange& change);

  /// Marks a unit's gathered parameters as stale. Every rank has changed its offloaded shards of the unit's trained
  /// parameters, or will change them, in the order of the units. Starts to copy the shards to the device and to gather
  /// them where the unit has memory now. Then call shards_changed(), which skips such a unit. `rounded`: as in
  /// ShardChange.
  void unit_changed(size_t unit, bool rounded);

  /// Gathers a unit's parameters until let_go(). Returns false when they are gathered already.
  bool need(size_t unit);
  void let_go(size_t unit);

  /// Waits for all gathers in flight.
  void settle();
  /// Returns when no copy reads offloaded shards any more. The host may then change the shards.
  void finish_copies();
  /// Returns the costs of copying offloaded shards to the device so far.
  CopyCosts copy_costs() const { return transfer_ ? transfer_->copy_costs() : CopyCosts{}; }

 private:
  enum class State { Away, Coming, Here };
  struct UnitGather {
    State state = State::Here;
    bool stale = true;         ///< this rank's slice of the full parameters differs from its shard
    bool frozen_stale = true;  ///< full frozen parameters differ from the ranks' shards
    bool in_backward = false;  ///< in this step
    bool changed = false;      ///< unit_changed() has been called since the last shards_changed()
    std::vector<Work> works;
    StreamMark copied = {};  ///< with offload: the end of the copy to this rank's slice
  };

  void start(size_t unit);
  /// Marks the unit to be gathered again before its next use.
  void make_stale(size_t unit, const ShardChange& change);
  /// Starts to gather a buffer whose shards are offloaded, and adds the gather to the works of the buffer's unit.
  void start_offloaded(const FlatBuffer& buffer, UnitGather& gather);
  /// Returns true when units reuse memory of others; units that stay gathered have memory of their own.
  bool reuses_memory() const { return memory_.is_reused() && reshard_; }
  /// Evicts the units before `first` and after `last`.
  void evict_others(int64_t first, int64_t last);
  /// Starts the gathers of the units after `unit` in the direction `step`, +1 or -1, and reads the next shard ahead.
  void prefetch(size_t unit, int step);
  /// Returns true when a unit that is not of the whole step has its parameters, or a gather of it is under way.
  bool has_lent() const;

  std::vector<Unit>& units_;
  Group group_;
  const Arena& memory_;
  bool lets_go_;  // parameters are evicted at the end of the unit's forward or backward
  bool reshard_;  // after the forward
  int64_t ahead_;
  size_t kept_ = 0;  // the last unit of the forward, which is the first of the backward
  std::vector<UnitGather> gathers_;
  std::optional<ShardTransfer> transfer_;  // when shards are offloaded
};

}  // namespace meshtrain
