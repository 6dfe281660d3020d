#include "fsdp/offsets.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace meshtrain {
namespace {

/// The lowest offset at which `size` bytes are free of the `taken` ranges.
int64_t lowest_free(std::vector<std::pair<int64_t, int64_t>> taken, int64_t size) {
  std::sort(taken.begin(), taken.end());
  int64_t offset = 0;
  for (const auto& [begin, end] : taken) {
    if (offset + size <= begin) break;
    offset = std::max(offset, end);
  }
  return offset;
}

}  // namespace

Offsets assign_offsets(const std::vector<Tenant>& tenants, int64_t reach) {
  std::vector<int64_t> order(tenants.size()), done;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::pair(tenants[a].always, tenants[a].size) > std::pair(tenants[b].always, tenants[b].size);
  });
  std::vector<int64_t> position(tenants.size());  // among those of any size
  for (size_t i = 1; i < tenants.size(); ++i) position[i] = position[i - 1] + (tenants[i - 1].size > 0 ? 1 : 0);
  Offsets assigned{std::vector<int64_t>(tenants.size()), 0};
  for (const int64_t tenant : order) {
    if (tenants[tenant].size == 0) continue;
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (const int64_t other : done) {
      if (!tenants[other].always && std::abs(position[other] - position[tenant]) > reach) continue;
      taken.emplace_back(assigned.offsets[other], assigned.offsets[other] + tenants[other].size);
    }
    assigned.offsets[tenant] = lowest_free(std::move(taken), tenants[tenant].size);
    assigned.total = std::max(assigned.total, assigned.offsets[tenant] + tenants[tenant].size);
    done.push_back(tenant);
  }
  return assigned;
}

}  // namespace meshtrain
