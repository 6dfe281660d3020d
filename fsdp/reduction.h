#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "fsdp/gradient_stage.h"
#include "fsdp/unit_memory.h"

namespace meshtrain {

/// Sums of gradients, each unit's while the units before it are still in backward: over shards and replicas first, then
/// each rank's shard over the ranks that remain. Collectives are issued in the reverse order of the units, whatever the
/// order in which gradients become final, and for units whose gradients had no backward here too, so that every rank
/// issues the same ones. Units without trainable parameters take no part.
class Reduction {
 public:
  /// `memory`: the memory of full gradients.
  Reduction(std::vector<Unit>& units, const FsdpOptions& options, const Arena& memory);

  /// Makes all gradients count as zero.
  void begin_step();
  /// `last`: the last one of the step.
  void begin_backward(bool last);
  /// Lends memory to the unit's gradients. The gradients of the units after it are final. Does nothing for a unit
  /// whose reduction has begun.
  void before_backward(size_t unit);
  /// Throws std::logic_error when the reduction of `unit` has begun in this backward: it would miss a gradient.
  void expect_open(size_t unit) const;
  /// Takes the place of begin_backward() for the gradients that a step's backwards have deferred (GradientState), which
  /// are then computed: reduces each unit when the last of its gradients is final.
  void begin_deferred();
  /// Counts one more parameter whose gradient is final.
  void count_final(size_t unit);
  /// Returns when every unit has been reduced, and in the last backward of a step when all its sums are complete.
  void end_backward();

  /// Sets the function that gets each shard of offloaded gradients when it is complete.
  void on_reduced(OnReduced function) { on_reduced_ = std::move(function); }
  /// Returns when the host has all shards of offloaded gradients.
  void finish_copies();
  /// Returns the memory of gradients before their copy to the host; null when gradients are not offloaded.
  const GradientStage* stage() const { return stage_ ? &*stage_ : nullptr; }

 private:
  struct UnitScatter {
    size_t unit;
    std::vector<Work> works;
  };

  /// Takes back the memory of a previous backward that has thrown.
  void forget_failed();
  void lend(size_t unit);
  void let_go(size_t unit);
  /// Lends the unit memory for gradients that count as zero.
  void lend_anew(size_t unit);
  /// Sets the unit's unwritten gradients to zero.
  void complete(size_t unit);
  /// Issues the reductions of the units that are next and whose gradients are final.
  void issue_complete();
  void issue_next();
  /// Returns the memory on the device in which the buffer's shard is completed.
  at::Tensor shard_of(size_t unit, FlatBuffer& buffer);
  /// Completes the oldest reduce-scatter, and starts the sum over replicas in the last backward of a step.
  void finish_scatter();
  /// Completes the oldest sum over replicas, and starts the unit's remaining sums.
  void finish_sum();
  void finish_remaining();
  /// Starts the remaining sums of `range` of a buffer whose shard is `gradients`.
  static void sum_remaining(const FlatBuffer& buffer, const at::Tensor& gradients, Range range, const Group& group,
                            std::vector<Work>& works);
  bool sums_full(const FlatBuffer& buffer) const;

  std::vector<Unit>& units_;
  Group shards_, replicas_, remaining_, remaining_partial_;
  SumsInFlight in_flight_;
  const Arena& memory_;
  bool full_;  // gradients have permanent memory
  bool last_ = false;
  bool reducing_ = false;  // in this backward
  bool first_ = false;     // no shard of gradients with memory of its own has been written in this step
  int64_t next_ = -1;      // the unit whose reduction is issued next; those after it are issued
  std::deque<UnitScatter> scattering_;
  std::deque<UnitScatter> summing_;
  std::deque<UnitScatter> remaining_sums_;
  std::vector<bool> lent_;
  std::optional<GradientStage> stage_;
  OnReduced on_reduced_;
};

}  // namespace meshtrain
