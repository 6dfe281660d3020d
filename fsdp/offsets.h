#pragma once

#include <cstdint>
#include <vector>

namespace meshtrain {

/// A unit's tensors, one of a row, which need memory at the same time as their neighbours.
struct Tenant {
  int64_t size;         ///< bytes; 0: it needs no memory, and its neighbours are each other's
  bool always = false;  ///< at all times, rather than with its neighbours
};

/// The offset of each tenant in one allocation.
struct Offsets {
  std::vector<int64_t> offsets;  ///< bytes
  int64_t total = 0;             ///< bytes
};

/// Returns offsets for `tenants`, of which up to `reach` + 1 neighbours use their memory at once: tenants at most
/// `reach` apart do not overlap, others may. The largest get their offsets first, each as low as possible; a row of
/// blocks between a large embedding and a large head takes the larger of these and `reach` blocks.
Offsets assign_offsets(const std::vector<Tenant>& tenants, int64_t reach);

}  // namespace meshtrain
