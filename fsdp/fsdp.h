#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "fsdp/gradient_stage.h"
#include "fsdp/shard_change.h"
#include "fsdp/unit_memory.h"

namespace meshtrain {

/// Fully sharded data parallelism over flat buffers, for any model, which is a list of units in the order of their
/// forward. Gradients are summed, never averaged, over the groups of the options, each unit's while the
/// units before it are still in backward; parameters are gathered while the units before (in backward: after) compute.
///
/// A step:   begin_step();
///           for each micro-batch { loss = ... run(unit, forward) ...;
///                                  begin_backward(last); loss.backward(...); end_backward(); }
///           finish_copies();  // when shards are offloaded
///           change shard_values() from shard_gradients() of every buffer; shards_changed();
///
/// A unit's parameters may be used only between the input and the output of its forward in run(), unless the unit is
/// of the whole step. Under NoShard, run() may be left out. Every rank of the groups makes the same calls in the same
/// order; after the first step nothing is allocated.
class Fsdp {
 public:
  /// Binds every parameter to memory and keeps its value, which must be equal on every rank. Units of
  /// the whole step come first. Collective: ranks of a host share memory (UnitMemory), and gathers get a queue of their
  /// own. Throws std::invalid_argument when units of the whole step do not come first, for a unit without parameters,
  /// or when shards are offloaded and the optimizer's state is not.
  Fsdp(std::vector<UnitSpec> units, FsdpOptions options);
  ~Fsdp();
  Fsdp(const Fsdp&) = delete;
  Fsdp& operator=(const Fsdp&) = delete;

  const std::vector<Unit>& units() const;
  /// Returns the memory of full parameters and gradients.
  const UnitMemory& memory() const;
  /// Returns the memory of shards: FsdpOptions::memory.
  const ShardMemory& shard_memory() const;
  /// Returns the memory of the optimizer's state: FsdpOptions::state_memory, or shard_memory().
  const ShardMemory& state_memory() const;

  // Offloaded shards are in host memory or on disk while a GPU computes (ShardMemory::leaves()).

  bool is_offloaded() const;
  /// Returns true when the optimizer's state is in host memory or on disk while shards are on the GPU, which updates
  /// them.
  bool pages_state() const;
  /// Sets a function that gets the shard of each buffer's gradient in the last backward of a step, after all sums of
  /// the shard and before its copy to the host. The function may change the gradient by work on the current stream.
  void on_reduced(OnReduced function);
  /// Returns when all copies between the device and shards are complete. Call it before the host reads
  /// shard_gradients() or changes shard_values().
  void finish_copies();
  /// Starts to copy a unit's shards to the device. Every rank must call it either for each unit that is trained, in
  /// their order, when all shards of the unit have their new values, or for no unit. Then call shards_changed().
  /// `rounded`: as in ShardChange. Does nothing when shards are not offloaded.
  void unit_changed(size_t unit, bool rounded);
  /// Returns the costs of copies between the device and shards so far.
  CopyCosts copy_costs() const;
  /// Returns the bytes of device memory in which sums of offloaded gradients are completed; 0 without offload.
  int64_t stage_bytes() const;

  /// Calls `forward` with the unit's parameters gathered, and gathers them again for its backward. Inside a backward it
  /// is a forward that is computed again: the parameters stay until the unit before is needed.
  at::Tensor run(size_t unit, const std::function<at::Tensor()>& forward);
  /// Calls `forward` of a module that does not know its units (fsdp/module.h). The first operator that takes a
  /// parameter of a unit gathers the unit and evicts the unit used before; the backward does the same. Units may be
  /// used in any order, but are gathered ahead only in the order of the list. When gradients are cut over ranks, the
  /// backward throws std::logic_error if a unit gets a gradient after its reduction has begun. Mark such units
  /// whole_step, or merge them into one unit. Throws std::logic_error before an operator that writes a parameter, and
  /// for a result without a gradient, with GradMode on, of a forward that used units with trained parameters. Call
  /// begin_backward(), backward() and end_backward() in the same thread.
  at::Tensor run(const std::function<at::Tensor()>& forward);

  /// Makes gradients count as zero: those that a layer writes itself (Parameter::written_by_layer) keep old values
  /// until the layer or end_backward() overwrites them; all others are set to zero at once. Throws std::logic_error
  /// when requires_grad() of a parameter has changed since the constructor.
  void begin_step();
  /// Call before each backward; `last`: the last one of the step. The backward throws std::logic_error when a parameter
  /// that its layer writes gets its first gradient of the step from elsewhere.
  void begin_backward(bool last);
  /// Takes the place of begin_backward() for the gradients that the backwards of a step have deferred (GradientState).
  /// Give none of these backwards as the last; then call this, compute the gradients that are still deferred, and call
  /// end_backward(). Each unit is reduced when the last of its gradients has been computed. Gradients must have memory
  /// for a complete step (keeps_full_gradients()), else the first backward that defers throws std::logic_error.
  void begin_deferred();
  /// Call after each backward. After the last one all sums of gradients are complete.
  void end_backward();
  /// Ends the watch that begin_backward() began, without communication. Call it when the backward has thrown.
  void leave_backward();
  /// Call when the shards have been changed: after end_backward() of a step's last micro-batch, and before any other
  /// call, which would use the old parameters.
  void shards_changed(const ShardChange& change = {});

  /// Call after forwards without a backward, between steps and without recording.
  void end_forward();

  // Between steps, for code that needs full parameters. Every rank of the shard group must call these.

  /// Calls `write` with each parameter, whose tensor has all of its local elements, zeros: `write` sets the parameter's
  /// value. Every rank must write the same, or replicas differ. Holds one unit at a time, and issues no collective.
  void write_values(const std::function<void(const Parameter&)>& write);
  /// Calls `visit` with each unit while its parameters are gathered. Returns when every rank has done so.
  void visit_values(const std::function<void(const Unit&)>& visit);
  /// Calls `visit` with each parameter, whose tensor is gathered from the shards, in their dtype.
  void visit_shards(const std::function<void(const Parameter&)>& visit);
  /// Calls `visit` with each trainable parameter, whose tensor is its reduced gradient, gathered from the shards.
  void visit_gradients(const std::function<void(const Parameter&)>& visit);

 private:
  void visit_full(const at::Tensor& (FlatBuffer::*shard)() const, const std::function<void(const Parameter&)>& visit);

  struct State;  // shared with the hooks on the parameters, which may outlive this object
  std::shared_ptr<State> state_;
};

}  // namespace meshtrain
