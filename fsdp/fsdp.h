#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "fsdp/unit.h"
#include "mesh/group.h"

namespace meshtrain {

/// Data parallelism over flat buffers, for any model: all that is known of it is a list of units in the order of their
/// forward. Parameters are whole on each rank (NO_SHARD); gradients are summed, never averaged, over `group` alone,
/// each unit's while the units before it are still in backward.
///
/// A step:   zero_gradients();
///           for each micro-batch { begin_backward(last); loss.backward(...); end_backward(); }
///
/// Collectives are issued in the reverse order of the unit list, whatever the order in which gradients become final,
/// and for units without gradients too, so that every rank issues the same ones.
class Fsdp {
 public:
  /// Called on each rank, in issue order, when a buffer's gradients are summed over `group`: the place to issue the
  /// sums over other axes. They must not be waited for there.
  using OnReduced = std::function<void(FlatBuffer& buffer)>;

  /// Gives every parameter its storage. Collective calls are made in backward only.
  Fsdp(std::vector<UnitSpec> units, Group group, OnReduced on_reduced = {});
  ~Fsdp();
  Fsdp(const Fsdp&) = delete;
  Fsdp& operator=(const Fsdp&) = delete;

  const std::vector<Unit>& units() const;

  void zero_gradients();

  /// Call before each backward. Without `synchronize` gradients only accumulate: micro-batches before the last.
  void begin_backward(bool synchronize);
  /// Call after it, on every rank of the group: returns when every unit has been reduced and handed to `on_reduced`.
  void end_backward();

 private:
  struct State;  // shared with the hooks on the parameters, which may outlive this object
  std::shared_ptr<State> state_;
};

}  // namespace meshtrain
