#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/shard_change.h"
#include "fsdp/unit_memory.h"

namespace meshtrain {

/// Fully sharded data parallelism over flat buffers, for any model: all that is known of it is a list of units in the
/// order of their forward. Gradients are summed, never averaged, over shards and replicas alone, each unit's while the
/// units before it are still in backward; parameters are gathered while the units before (in backward: behind) compute.
///
/// A step:   begin_step();
///           for each micro-batch { loss = ... run(unit, forward) ...;
///                                  begin_backward(last); loss.backward(...); end_backward(); }
///           change shard_values() from shard_gradients() of every buffer; shards_changed();
///
/// A unit's parameters may be used only between the input and the output of its forward in run(), unless the unit is
/// of the whole step. Under NoShard, run() may be left out. Every rank of the groups makes the same calls in the same
/// order; after the first step nothing is allocated.
class Fsdp {
 public:
  /// Gives every parameter its storage; values that they already have are kept, and the same on every rank. Units of
  /// the whole step come first. Collective: ranks of a host share memory (UnitMemory), and gathers get a queue of their
  /// own. Throws std::invalid_argument when units of the whole step do not come first, or for a unit without
  /// parameters.
  Fsdp(std::vector<UnitSpec> units, FsdpOptions options);
  ~Fsdp();
  Fsdp(const Fsdp&) = delete;
  Fsdp& operator=(const Fsdp&) = delete;

  const std::vector<Unit>& units() const;
  /// Where whole parameters and gradients came to lie.
  const UnitMemory& memory() const;
  /// Where shards lie: FsdpOptions::memory.
  const ShardMemory& shard_memory() const;

  /// `forward()` with the unit's parameters gathered, and gathered again for its backward.
  at::Tensor run(size_t unit, const std::function<at::Tensor()>& forward);

  /// Gradients count as zero: those that a layer writes itself (Parameter::written_by_layer) are left as they are until
  /// it does, or until end_backward() sets them to zero; all others are zero at once.
  void begin_step();
  /// Call before each backward; `last`: of the step. The backward throws std::logic_error when a parameter that its
  /// layer writes gets its first gradient of the step from elsewhere.
  void begin_backward(bool last);
  /// Call after it. After the last one every unit has been reduced and handed to on_reduced.
  void end_backward();
  /// Call when the shards have been changed: after end_backward() of a step's last micro-batch, and before anything
  /// else is asked for.
  void shards_changed(const ShardChange& change = {});

  /// "backward of model.layers.3": what this rank began last of a step, for messages about what went wrong in it.
  /// On any thread.
  std::string phase() const;

  /// Call after forwards whose backward does not come, between steps and without recording.
  void end_forward();

  // Between steps, for whoever needs whole parameters. Every rank of the shard group calls them.

  /// Calls `write` with each parameter, its tensor all of its local elements, zero at first: what it writes is the
  /// parameter's value. Every rank must write the same. Holds one unit at a time, and issues no collective.
  void write_values(const std::function<void(const Parameter&)>& write);
  /// Calls `visit` with each unit while its parameters have their values. Returns when every rank is through.
  void visit_values(const std::function<void(const Unit&)>& visit);
  /// Calls `visit` with each parameter, its tensor what the shards hold: of their dtype.
  void visit_shards(const std::function<void(const Parameter&)>& visit);
  /// Calls `visit` with each trainable parameter, its tensor the reduced gradient, as the shards have it.
  void visit_gradients(const std::function<void(const Parameter&)>& visit);

 private:
  void visit_whole(const at::Tensor& (FlatBuffer::*shard)() const, const std::function<void(const Parameter&)>& visit);

  struct State;  // shared with the hooks on the parameters, which may outlive this object
  std::shared_ptr<State> state_;
};

}  // namespace meshtrain
