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

  int64_t num_bytes() const { return memory_.defined() ? memory_.numel() : 0; }
  /// Lends `tensors`, end to end, the memory of unit `unit`.
  void lend(size_t unit, const std::vector<at::Tensor>& tensors) const;
  /// Whether two units share memory.
  bool overlap(size_t a, size_t b) const;

 private:
  std::vector<Tenant> tenants_;
  Places places_;
  at::Tensor memory_;
};

}  // namespace meshtrain
