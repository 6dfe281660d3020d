#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "fsdp/offsets.h"
#include "fsdp/unit.h"
#include "mesh/group.h"

namespace meshtrain {

/// Memory for tensors of units: for good, or in turns, each unit then always in the same place of it. Made in three
/// steps, of which only share() is collective and only settle() may find no memory.
class Arena {
 public:
  using TensorsOf = std::function<std::vector<at::Tensor>(const Unit&)>;

  Arena() = default;
  /// Offsets for `tensors` of each unit, which have no memory. `reach`: only neighbours at most so far apart, and units
  /// of the whole step, have theirs at once; none: all have it for good.
  Arena(const std::vector<Unit>& units, const TensorsOf& tensors, std::optional<int64_t> reach = {});

  /// Asks for a window of `group`, every rank of which must call it. False where there are none.
  bool share(const Group& group, Placement placement);
  /// Takes ordinary memory unless it has a window, and lends it to all units when that is for good.
  void settle();

  /// Where the memory lies, and how much it is.
  Placement placement() const { return placement_; }
  at::Device device() const { return options_.device(); }
  int64_t bytes() const { return offsets_.total; }
  bool in_turns() const { return in_turns_; }

  /// In turns: gives the unit's tensors memory, of what content ever, until it is taken back.
  void lend(size_t unit) const;
  void take_back(size_t unit) const;

 private:
  void give(size_t unit) const;

  std::vector<std::vector<at::Tensor>> tensors_;
  Offsets offsets_;
  bool in_turns_ = false;
  Placement placement_ = Placement::Private;
  at::TensorOptions options_;
  at::Tensor memory_;
};

}  // namespace meshtrain
