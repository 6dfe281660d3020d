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
/// `reach` apart do not overlap, others may. With a reach of 0 or 1 the total is the largest sum of reach + 1
/// neighbours, plus the tenants that stay. With a larger reach the largest tenants get their offsets first, each as low
/// as possible, and the total may be more. For example, tenants of two sizes in turn, with an even reach, take as much
/// as reach + 2 neighbours.
Offsets assign_offsets(const std::vector<Tenant>& tenants, int64_t reach);

}  // namespace meshtrain
