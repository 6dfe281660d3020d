#pragma once

#include <vector>

#include "fsdp/shard_change.h"
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

  /// Gathers a unit's parameters until let_go(). Returns false when they are gathered already.
  bool need(size_t unit);
  void let_go(size_t unit);

 private:
  enum class State { Away, Coming, Here };
  struct UnitGather {
    State state = State::Here;
    bool stale = true;         ///< this rank's slice of the full parameters differs from its shard
    bool frozen_stale = true;  ///< full frozen parameters differ from the ranks' shards
    bool in_backward = false;
    std::vector<Work> works;
  };

  void start(size_t unit);
  /// Returns true when units reuse memory of others; units that stay gathered have memory of their own.
  bool reuses_memory() const { return memory_.is_reused() && reshard_; }
  /// Evicts the units before `first` and after `last`.
  void evict_others(int64_t first, int64_t last);
  /// Starts the gathers of the units after `unit` in the direction `step`, +1 or -1, and reads the next shard ahead.
  void prefetch(size_t unit, int step);

  std::vector<Unit>& units_;
  Group group_;
  const Arena& memory_;
  bool lets_go_;  // parameters are evicted at the end of the unit's forward or backward
  bool reshard_;  // after the forward
  int64_t ahead_;
  size_t kept_ = 0;  // the last unit of the forward, which is the first of the backward
  std::vector<UnitGather> gathers_;
};

}  // namespace meshtrain
