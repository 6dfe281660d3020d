#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "fsdp/offsets.h"
#include "fsdp/unit.h"
#include "mesh/group.h"

namespace meshtrain {

/// Memory for tensors of units: permanent, or reused by other units. A unit always has the same offset. Construction
/// has three steps: only share() is collective, and only settle() can fail for lack of memory.
class Arena {
 public:
  using TensorsOf = std::function<std::vector<at::Tensor>(const Unit&)>;

  Arena() = default;
  /// Assigns offsets to `tensors` of each unit, which have no memory yet. `reach`: the largest distance between units
  /// that have memory at the same time, in addition to the units of the whole step; none: all have memory permanently.
  Arena(const std::vector<Unit>& units, const TensorsOf& tensors, std::optional<int64_t> reach = {});

  /// Allocates a window of `group`, every rank of which must call it. Returns false where windows are impossible.
  bool share(const Group& group, Placement placement);
  /// Allocates ordinary memory unless there is a window, and lends it to all units when it is permanent.
  void settle();

  // The kind, device and size of the memory.
  Placement placement() const { return placement_; }
  at::Device device() const { return options_.device(); }
  int64_t bytes() const { return offsets_.total; }
  bool is_reused() const { return is_reused_; }

  /// Gives the unit's tensors memory, uninitialised, until take_back(). Does nothing when memory is permanent.
  void lend(size_t unit) const;
  void take_back(size_t unit) const;

 private:
  void give(size_t unit) const;

  std::vector<std::vector<at::Tensor>> tensors_;
  Offsets offsets_;
  bool is_reused_ = false;
  Placement placement_ = Placement::Private;
  at::TensorOptions options_;
  at::Tensor memory_;
};

}  // namespace meshtrain
