#pragma once

#include <functional>

#include "fsdp/unit.h"

namespace meshtrain {

/// Memory that units take in turn, each always the same place of it, given out once.
class Arena {
 public:
  Arena() = default;
  /// Places for units of which neighbours at most `reach` apart have theirs at once.
  Arena(const std::vector<Unit>& units, const std::function<Tenant(const Unit&)>& tenant, int64_t reach);

  /// Lends `tensors`, end to end, the memory of unit `unit`.
  void lend(size_t unit, const std::vector<at::Tensor>& tensors) const;

 private:
  Places places_;
  at::Tensor memory_;
};

}  // namespace meshtrain
