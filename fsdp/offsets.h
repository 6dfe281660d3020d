#pragma once

#include <cstdint>
#include <vector>

namespace meshtrain {

/// Something that needs memory while its neighbours in a row have some.
struct Tenant {
  int64_t size;         ///< bytes; 0: it takes no place, and its neighbours are each other's
  bool always = false;  ///< at all times, rather than with its neighbours
};

/// Where each lies in one piece of memory.
struct Offsets {
  std::vector<int64_t> offsets;  ///< bytes
  int64_t total = 0;             ///< bytes
};

/// Offsets for `tenants`, of which up to `reach` + 1 neighbours have their memory at once: those at most `reach` apart
/// lie apart, others may share. The largest are placed first, each as low as it can be; a row of blocks between a large
/// embedding and a large head takes the larger of these and `reach` blocks.
Offsets plan_offsets(const std::vector<Tenant>& tenants, int64_t reach);

}  // namespace meshtrain
